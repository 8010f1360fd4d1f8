//! What `bench` has measured: as a table, as JSON that can be compared, as CSV.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::bench::Peaks;
use crate::cli::model::tensor_bytes;
use crate::cli::output::one_line;
use crate::error::{Error, Result};
use crate::gpu::Caps;
use crate::kernel::Cost;
use crate::memory::{Capacity, Maths, Tile};
use crate::models::Config;
use crate::weights::Weights;

#[derive(Deserialize, Serialize)]
pub struct Report {
    /// [`FORMAT`] and [`VERSION`].
    format: String,
    version: u32,
    farpast: String,
    device: Device,
    /// None on the CPU interpreter.
    peaks: Option<Peaks>,
    /// None of kernels alone.
    pub model: Option<Model>,
    pub settings: Option<Settings>,
    pub results: Vec<Row>,
    /// Kernels of a step of the model.
    pub profile: Vec<Row>,
}

const FORMAT: &str = "farpast bench";
const VERSION: u32 = 1;

/// Most bytes of a report that is read.
const LIMIT: u64 = 64 << 20;

#[derive(Deserialize, Serialize)]
pub struct Device {
    name: String,
    driver: String,
    backend: String,
    kind: String,
    /// What the kernels use beyond what every WebGPU device has.
    tiers: Vec<String>,
    /// How linears are tiled; reports of old have none.
    #[serde(default)]
    tile: String,
    /// Whether kernels are timed by the device's clock.
    timestamps: bool,
}

#[derive(Deserialize, PartialEq, Serialize)]
pub struct Model {
    name: String,
    file: String,
    architecture: String,
    /// Of most bytes.
    format: String,
    bytes: u64,
    parameters: u64,
}

#[derive(Deserialize, PartialEq, Serialize)]
pub struct Settings {
    context: usize,
    batch: usize,
    kv: String,
}

/// A test of the model, or a kernel.
#[derive(Deserialize, Serialize)]
pub struct Row {
    test: String,
    /// Of one run; 0 for a kernel.
    tokens: usize,
    /// Of one run; 0 for a test of the model.
    dispatches: usize,
    /// Of each run.
    seconds: Vec<f64>,
    /// Of one run.
    bytes_read: u64,
    bytes_written: u64,
    flops: u64,
    /// What the device's peaks allow.
    least_seconds: Option<f64>,
}

impl Device {
    /// Of an adapter, or the CPU interpreter.
    pub fn of(caps: Option<&Caps>, tile: Tile) -> Self {
        let Some(caps) = caps else {
            let name = "CPU interpreter".into();
            let (driver, backend, kind) = (String::new(), "cpu".into(), "software".into());
            return Self { name, driver, backend, kind, tiers: Vec::new(), tile: String::new(), timestamps: false };
        };
        Self {
            name: one_line(&caps.name),
            driver: one_line(&caps.driver),
            backend: caps.backend.clone(),
            kind: caps.kind.to_string(),
            tiers: [
                ("subgroups", tile.broadcast),
                ("f16", tile.maths == Maths::F16),
                ("dot8", tile.maths == Maths::Dot8),
                ("coopmat", tile.maths == Maths::Coopmat),
            ]
            .into_iter()
            .filter(|(_, is_used)| *is_used)
            .map(|(tier, _)| tier.into())
            .collect(),
            tile: tile.to_string(),
            timestamps: caps.timestamps,
        }
    }
}

impl Model {
    pub fn of(weights: &Weights, config: &Config) -> Self {
        let named = weights.metadata().string("general.name").map(one_line).ok().filter(|name| !name.is_empty());
        let file = weights.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut formats: BTreeMap<String, usize> = BTreeMap::new();
        for t in weights.tensors() {
            *formats.entry(t.format_name.into_owned()).or_default() += t.bytes.len();
        }
        let format = formats.into_iter().max_by_key(|(_, bytes)| *bytes).map_or_else(String::new, |(name, _)| name);
        Self {
            name: named.unwrap_or_else(|| one_line(&file)),
            file,
            architecture: config.architecture.clone(),
            format,
            bytes: tensor_bytes(weights) as u64,
            parameters: weights.tensors().map(|t| t.dims.iter().product::<u64>()).sum(),
        }
    }
}

impl Settings {
    pub fn of(capacity: &Capacity) -> Self {
        let kv = capacity.kv.kv_name().unwrap_or_default();
        Self { context: capacity.context, batch: capacity.tokens, kv: kv.into() }
    }
}

impl Row {
    /// `costs` of all dispatches of one run.
    pub fn new(
        test: String,
        tokens: usize,
        dispatches: usize,
        seconds: Vec<f64>,
        costs: &[Cost],
        peaks: Option<&Peaks>,
    ) -> Self {
        let cost: Cost = costs.iter().copied().sum();
        let least_seconds = peaks.map(|peaks| costs.iter().map(|cost| peaks.least_seconds(cost)).sum());
        let Cost { read: bytes_read, written: bytes_written, flops } = cost;
        Self { test, tokens, dispatches, seconds, bytes_read, bytes_written, flops, least_seconds }
    }

    fn is_kernel(&self) -> bool {
        self.tokens == 0
    }

    /// Tokens a second of each run; of a kernel runs a second.
    fn speeds(&self) -> Vec<f64> {
        self.seconds.iter().map(|s| self.tokens.max(1) as f64 / s).collect()
    }

    /// The mean of the speeds and their standard deviation, of a kernel the median of them.
    fn speed(&self) -> (f64, f64) {
        let mut speeds = self.speeds();
        let (mean, deviation) = mean_and_deviation(&speeds);
        speeds.sort_by(f64::total_cmp);
        let middle = (speeds[(speeds.len() - 1) / 2] + speeds[speeds.len() / 2]) / 2.0;
        (if self.is_kernel() { middle } else { mean }, deviation)
    }

    /// Of one run.
    fn typical_seconds(&self) -> f64 {
        self.tokens.max(1) as f64 / self.speed().0
    }

    fn best_seconds(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn gigabytes_per_second(&self) -> f64 {
        (self.bytes_read + self.bytes_written) as f64 / self.typical_seconds() / 1e9
    }

    fn gigaflops_per_second(&self) -> f64 {
        self.flops as f64 / self.typical_seconds() / 1e9
    }

    fn roofline(&self) -> Option<f64> {
        Some(100.0 * self.least_seconds? / self.typical_seconds())
    }

    /// GB/s, GFLOP/s and % of the roofline.
    fn rates(&self) -> [String; 3] {
        let roofline = self.roofline().map_or_else(|| "–".into(), |percent| format!("{percent:.1}"));
        [format!("{:.2}", self.gigabytes_per_second()), format!("{:.2}", self.gigaflops_per_second()), roofline]
    }
}

/// With one sample the deviation is 0.
fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

impl Report {
    pub fn new(device: Device, peaks: Option<Peaks>) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            farpast: env!("CARGO_PKG_VERSION").into(),
            device,
            peaks,
            model: None,
            settings: None,
            results: Vec::new(),
            profile: Vec::new(),
        }
    }

    /// Reads what [`json`](Self::json) wrote.
    pub fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        File::open(path).and_then(|f| f.take(LIMIT + 1).read_to_end(&mut bytes)).map_err(Error::io(path))?;
        let wrong = |expected: String, found: String| Err(Error::file(path, "results of bench", expected, found));
        if bytes.len() as u64 > LIMIT {
            return wrong(format!("at most {LIMIT} bytes"), "more".into());
        }
        // The version comes first: of another one the rest may be anything.
        #[derive(Deserialize)]
        struct Header {
            format: String,
            version: u32,
        }
        let report: Result<Report, serde_json::Error> = match serde_json::from_slice::<Header>(&bytes) {
            Ok(Header { format, version }) if format == FORMAT && version == VERSION => serde_json::from_slice(&bytes),
            Ok(Header { format, version }) => {
                return wrong(format!("{FORMAT:?} of version {VERSION}"), format!("{format:?} of version {version}"));
            }
            Err(e) => Err(e),
        };
        let report = match report {
            Ok(report) => report,
            Err(e) => return wrong("what bench -o json prints".into(), e.to_string()),
        };
        let positive = |x: &f64| x.is_finite() && *x > 0.0;
        if let Some(row) = report.rows().find(|row| row.seconds.is_empty() || !row.seconds.iter().all(positive)) {
            return wrong("a time above 0 for each run".into(), format!("{:?} of {}", row.seconds, row.test));
        }
        Ok(report)
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.results.iter().chain(&self.profile)
    }

    pub fn json(&self) -> String {
        let mut all = json!(self);
        // What follows from the rest, for those who read it elsewhere.
        for (part, rows) in [("results", &self.results), ("profile", &self.profile)] {
            for (row, found) in rows.iter().zip(all[part].as_array_mut().into_iter().flatten()) {
                let (speed, deviation) = row.speed();
                found["per_second"] = json!({ "typical": speed, "deviation": deviation, "samples": row.speeds() });
                found["bytes_per_second"] = json!(1e9 * row.gigabytes_per_second());
                found["flops_per_second"] = json!(1e9 * row.gigaflops_per_second());
                found["roofline_percent"] = json!(row.roofline());
            }
        }
        format!("{all:#}\n")
    }

    pub fn csv(&self) -> String {
        let mut out = String::from(
            "device,driver,backend,tiers,farpast,model,model_bytes,parameters,batch,kv,test,dispatches,runs,tokens,\
             per_second,deviation,best_seconds,bytes_read,bytes_written,flops,roofline_percent\n",
        );
        let (d, model) = (&self.device, self.model.as_ref());
        for row in self.rows() {
            let (speed, deviation) = row.speed();
            let settings = self.settings.as_ref();
            let fields = [
                d.name.clone(),
                d.driver.clone(),
                d.backend.clone(),
                d.tiers.join(" "),
                self.farpast.clone(),
                model.map(|m| m.name.clone()).unwrap_or_default(),
                model.map(|m| m.bytes.to_string()).unwrap_or_default(),
                model.map(|m| m.parameters.to_string()).unwrap_or_default(),
                settings.map(|s| s.batch.to_string()).unwrap_or_default(),
                settings.map(|s| s.kv.clone()).unwrap_or_default(),
                row.test.clone(),
                row.dispatches.to_string(),
                row.seconds.len().to_string(),
                row.tokens.to_string(),
                speed.to_string(),
                deviation.to_string(),
                row.best_seconds().to_string(),
                row.bytes_read.to_string(),
                row.bytes_written.to_string(),
                row.flops.to_string(),
                row.roofline().map(|percent| percent.to_string()).unwrap_or_default(),
            ];
            out.push_str(&fields.map(|field| quoted(&field)).join(","));
            out.push('\n');
        }
        out
    }

    pub fn markdown(&self) -> String {
        let mut out = match &self.model {
            Some(model) => self.tests(model),
            None => self.kernels(&self.results),
        };
        if !self.profile.is_empty() {
            write!(out, "\n{}", self.kernels(&self.profile)).expect("writing to a string");
        }
        writeln!(out, "\n{}", self.footer()).expect("writing to a string");
        out
    }

    fn tests(&self, model: &Model) -> String {
        let rows = self.results.iter().map(|row| {
            let (speed, deviation) = row.speed();
            let [gigabytes, gigaflops, roofline] = row.rates();
            vec![
                format!("{} {}", model.name, model.format),
                scaled(model.bytes as f64 / f64::from(1 << 20), 1024.0, ["MiB", "GiB"]),
                scaled(model.parameters as f64 / 1e6, 1000.0, ["M", "B"]),
                self.device.backend.clone(),
                row.test.clone(),
                format!("{speed:.2} ± {deviation:.2}"),
                gigabytes,
                gigaflops,
                roofline,
            ]
        });
        let head = ["model", "size", "params", "backend", "test", "t/s", "GB/s", "GFLOP/s", "% roofline"];
        table(head, &[0, 3], rows)
    }

    fn kernels(&self, rows: &[Row]) -> String {
        let shown = rows.iter().map(|row| {
            let [gigabytes, gigaflops, roofline] = row.rates();
            vec![
                row.test.clone(),
                row.dispatches.to_string(),
                format!("{:.1}", 1e6 * row.best_seconds()),
                format!("{:.1}", 1e6 * row.typical_seconds()),
                gigabytes,
                gigaflops,
                roofline,
                self.share(row).map_or_else(|| "–".into(), |share| format!("{:.1}", 100.0 * share)),
            ]
        });
        let head = ["kernel", "dispatches", "min µs", "median µs", "GB/s", "GFLOP/s", "% roofline", "% of step"];
        table(head, &[0], shown)
    }

    /// What part of its step a kernel takes; None where it is timed alone.
    fn share(&self, row: &Row) -> Option<f64> {
        let of = |row: &Row| row.test.split_once(": ").map(|(step, _)| step.to_string());
        let step = of(row)?;
        let all: f64 = self.profile.iter().filter(|r| of(r).as_ref() == Some(&step)).map(Row::typical_seconds).sum();
        Some(row.typical_seconds() / all)
    }

    /// What was measured where.
    fn footer(&self) -> String {
        let Device { name, driver, backend, kind, tiers, tile, timestamps } = &self.device;
        let mut out = format!("farpast {}: {name} ({kind}, {backend}", self.farpast);
        if !driver.is_empty() {
            out += &format!(", {driver}");
        }
        out += &format!("); tiers: {}", if tiers.is_empty() { "plain".into() } else { tiers.join(", ") });
        if !tile.is_empty() {
            out += &format!("; {}", one_line(tile));
        }
        if let Some(Peaks { bytes, flops }) = self.peaks {
            let clock = if *timestamps { "the device's" } else { "the host's" };
            out += &format!("; copy {:.2} GB/s, FMA {:.2} GFLOP/s, by {clock} clock", bytes / 1e9, flops / 1e9);
        }
        if let Some(Settings { context, batch, kv }) = &self.settings {
            out += &format!("; context {context}, batch {batch}, KV {kv}");
        }
        out
    }
}

/// The tests that `a` and `b` have in common, with the speed of `b` in that of `a`; a change of more than two standard deviations
/// of the difference is marked.
pub fn compare(a: &Report, b: &Report) -> Result<String> {
    let mut rows = Vec::new();
    for was in a.rows() {
        let Some(is) = b.rows().find(|row| row.test == was.test && row.is_kernel() == was.is_kernel()) else {
            continue;
        };
        let ((before, sigma_a), (after, sigma_b)) = (was.speed(), is.speed());
        let one = was.seconds.len().min(is.seconds.len()) < 2;
        let change = match after - before {
            _ if one => "one run: no σ",
            change if change.abs() <= 2.0 * sigma_a.hypot(sigma_b) => "",
            change if change > 0.0 => "faster",
            _ => "slower",
        };
        let shown = |row: &Row, (speed, deviation): (f64, f64)| match row.is_kernel() {
            false => format!("{speed:.2} ± {deviation:.2} t/s"),
            true => format!("{:.1} ± {:.1} µs", 1e6 / speed, 1e6 / speed * deviation / speed),
        };
        rows.push(vec![
            one_line(&was.test),
            shown(was, (before, sigma_a)),
            shown(is, (after, sigma_b)),
            format!("{:.3}", after / before),
            change.into(),
        ]);
    }
    if rows.is_empty() {
        return Err(Error::request("results to compare", "a test that both have", "none"));
    }
    let mut out = table(["test", "A", "B", "B / A", "beyond 2 σ"], &[0, 4], rows.into_iter());
    let left_out = a.rows().count() + b.rows().count() - 2 * out.lines().count().saturating_sub(2);
    if left_out > 0 {
        writeln!(out, "\n{left_out} results are in one only").expect("writing to a string");
    }
    if a.model != b.model || a.settings != b.settings {
        out.push_str("\nThe models or their settings differ.\n");
    }
    for (name, report) in [("A", a), ("B", b)] {
        writeln!(out, "\n{name}: {}", one_line(&report.footer())).expect("writing to a string");
    }
    Ok(out)
}

/// A number in the first unit, or in the second, of `larger` of those.
fn scaled(number: f64, larger: f64, units: [&str; 2]) -> String {
    if number < larger { format!("{number:.2} {}", units[0]) } else { format!("{:.2} {}", number / larger, units[1]) }
}

/// A Markdown table; the columns `left` are aligned left, the others right.
fn table<const N: usize>(head: [&str; N], left: &[usize], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = rows.collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).chain([head[i].chars().count()]).max();
    let widths: Vec<_> = (0..N).map(|i| width(i).unwrap_or_default()).collect();
    let mut out = String::new();
    let mut line = |cells: &[String]| {
        for (i, cell) in cells.iter().enumerate() {
            let gap = " ".repeat(widths[i] - cell.chars().count());
            let (before, after) = if left.contains(&i) { ("", gap.as_str()) } else { (gap.as_str(), "") };
            write!(out, "| {before}{cell}{after} ").expect("writing to a string");
        }
        out.push_str("|\n");
    };
    line(&head.map(String::from));
    let rule = |i: usize| format!("{}{}", "-".repeat(widths[i] - 1), if left.contains(&i) { "-" } else { ":" });
    line(&(0..N).map(rule).collect::<Vec<_>>());
    // A bar would end a cell.
    rows.iter().for_each(|row| line(&row.iter().map(|cell| cell.replace('|', "/")).collect::<Vec<_>>()));
    out
}

/// A field of CSV (RFC 4180).
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.into(),
    }
}

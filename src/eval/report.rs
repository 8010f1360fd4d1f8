//! What came out, as numbers, as a table and as a drawing.

use serde_json::{Value, json};

use super::Reads;

/// How the held-out tokens fared with approximated attention.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// KL(dense ‖ approximate) of each token, in nats.
    pub kl: Vec<f64>,
    /// -ln p of the tokens that followed, dense.
    pub dense_nll: Vec<f64>,
    /// The same, approximated.
    pub nll: Vec<f64>,
    /// Tokens for which the same one is most likely next.
    pub agreed: usize,
    /// Anchors that a query head reads for a token, on average.
    pub anchors: f64,
    /// Rows of the far past that it reads.
    pub rows: f64,
    /// Bytes of the far past that a token reads, in all layers and heads.
    pub bytes_read: f64,
    /// Of the far past, of all layers and heads.
    pub bytes_kept: usize,
}

impl Outcome {
    pub(super) fn new(bytes_kept: usize) -> Self {
        Self { bytes_kept, ..Self::default() }
    }

    /// One token: its logits, and which came next.
    pub fn add(&mut self, dense: &[f32], approximate: &[f32], next: u32) {
        let [p, q] = [dense, approximate].map(log_softmax);
        self.kl.push(p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0));
        self.dense_nll.push(-p[next as usize]);
        self.nll.push(-q[next as usize]);
        self.agreed += usize::from(best(&p) == best(&q));
    }

    /// What `queries` read, of all tokens and of heads of `d` dims.
    pub(super) fn finish(&mut self, reads: Reads, d: usize, queries: usize) {
        self.anchors = reads.anchors as f64 / queries as f64;
        self.rows = reads.rows as f64 / queries as f64;
        self.bytes_read = reads.bytes(d) as f64 / self.kl.len() as f64;
    }

    /// Mean KL.
    pub fn mean_kl(&self) -> f64 {
        mean(&self.kl)
    }

    /// KL of the token that is worse than 99 % of them.
    pub fn worst_kl(&self) -> f64 {
        let mut kl = self.kl.clone();
        kl.sort_by(f64::total_cmp);
        kl.get((kl.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// Change of the mean negative log likelihood.
    pub fn nll_change(&self) -> f64 {
        mean(&self.nll) - mean(&self.dense_nll)
    }

    /// Change of perplexity.
    pub fn perplexity_change(&self) -> f64 {
        mean(&self.nll).exp() - mean(&self.dense_nll).exp()
    }

    /// Share of tokens whose most likely successor is the same.
    pub fn agreement(&self) -> f64 {
        self.agreed as f64 / self.kl.len() as f64
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

fn best(p: &[f64]) -> usize {
    (1..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best })
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum = log_sum_exp(logits);
    logits.iter().map(|x| *x as f64 - sum).collect()
}

/// ln sum exp, in f64.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x)) as f64;
    logits.iter().map(|x| (*x as f64 - most).exp()).sum::<f64>().ln() + most
}

/// A method at a budget.
#[derive(Clone, Debug)]
pub struct Report {
    /// As the command line has it.
    pub method: &'static str,
    /// Rows that a query may read.
    pub budget: usize,
    /// What came of it.
    pub outcome: Outcome,
    /// What covers took to make, and the held-out tokens to run.
    pub seconds: [f64; 2],
}

impl Report {
    /// All numbers.
    pub fn json(&self) -> Value {
        let o = &self.outcome;
        json!({
            "method": self.method,
            "budget": self.budget,
            "kl": o.mean_kl(),
            "kl_p99": o.worst_kl(),
            "nll_change": o.nll_change(),
            "perplexity_change": o.perplexity_change(),
            "top1_agreement": o.agreement(),
            "anchors_read": o.anchors,
            "rows_read": o.rows,
            "bytes_read": o.bytes_read,
            "bytes_kept": o.bytes_kept,
            "seconds_to_cover": self.seconds[0],
            "seconds_to_run": self.seconds[1],
        })
    }
}

/// A table. What it counts as read: keys and values of rows and of anchors, as f16; a key alone is half a row. Anchored attention
/// and cells read the keys of all anchors they look at, and values of those that answer; Quest reads two bounds of each page, as long
/// as a key each; tables read the keys of all anchors, and a value for each query head.
pub fn markdown(reports: &[Report]) -> String {
    let mut text = String::from(
        "| method | budget | anchors read | rows read | KiB read per token | MiB kept | KL | KL p99 | ΔNLL | Δperplexity | same top-1 |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for Report { method, budget, outcome: o, .. } in reports {
        text += &format!(
            "| {method} | {budget} | {:.0} | {:.0} | {:.0} | {:.2} | {:.5} | {:.4} | {:+.4} | {:+.3} | {:.1} % |\n",
            o.anchors,
            o.rows,
            o.bytes_read / 1024.0,
            o.bytes_kept as f64 / 1048576.0,
            o.mean_kl(),
            o.worst_kl(),
            o.nll_change(),
            o.perplexity_change(),
            100.0 * o.agreement(),
        );
    }
    text
}

/// One line for each method in each of two plots: KL against bytes read, and against bytes kept.
pub fn svg(title: &str, reports: &[Report]) -> String {
    let kl = |r: &Report| r.outcome.mean_kl();
    let read = plot("KiB read per token", reports, |r| [r.outcome.bytes_read / 1024.0, kl(r)], 0.0);
    let kept = plot("MiB kept", reports, |r| [r.outcome.bytes_kept as f64 / 1048576.0, kl(r)], 480.0);
    let mut methods: Vec<_> = reports.iter().map(|r| r.method).collect();
    methods.dedup();
    let legend = methods.iter().enumerate().map(|(i, method)| {
        let (x, colour) = (60 + 110 * i, COLOURS[i % COLOURS.len()]);
        format!(
            "<line x1=\"{x}\" y1=\"40\" x2=\"{}\" y2=\"40\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"44\">{method}</text>\n",
            x + 22,
            x + 28
        )
    });
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 430\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"960\" height=\"430\" fill=\"white\"/>\n<text x=\"60\" y=\"20\" font-size=\"14\">{title}</text>\n{}{read}{kept}</svg>\n",
        legend.collect::<String>()
    )
}

const COLOURS: [&str; 8] = ["#d62728", "#7f7f7f", "#8c564b", "#2ca02c", "#1f77b4", "#9467bd", "#bcbd22", "#e377c2"];

/// Both axes are logarithmic.
fn plot(label: &str, reports: &[Report], point: impl Fn(&Report) -> [f64; 2], left: f64) -> String {
    const LEAST: f64 = 1e-7;
    let (x0, y0, width, height) = (left + 60.0, 380.0, 400.0, 310.0);
    let points: Vec<_> = reports.iter().map(|r| (r.method, point(r).map(|x| x.max(LEAST).log10()))).collect();
    let range = |i: usize| {
        let all = points.iter().map(|(_, p)| p[i]);
        let (least, most) = (all.clone().fold(f64::INFINITY, f64::min), all.fold(f64::NEG_INFINITY, f64::max));
        (least - 0.1, most + 0.1)
    };
    let ranges = if points.is_empty() { [(0.0, 1.0); 2] } else { [range(0), range(1)] };
    let x = |log: f64| x0 + (log - ranges[0].0) / (ranges[0].1 - ranges[0].0) * width;
    let y = |log: f64| y0 - (log - ranges[1].0) / (ranges[1].1 - ranges[1].0) * height;
    let mut text = format!(
        "<rect x=\"{x0}\" y=\"{}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{label}</text>\n\
         <text transform=\"translate({},{}) rotate(-90)\" text-anchor=\"middle\">KL, nats per token</text>\n",
        y0 - height,
        x0 + width / 2.0,
        y0 + 36.0,
        x0 - 46.0,
        y0 - height / 2.0,
    );
    for tick in ticks(ranges[0]) {
        let at = x(tick.log10());
        text += &format!(
            "<line x1=\"{at:.1}\" y1=\"{y0}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>\n",
            y0 - height,
            y0 + 16.0
        );
    }
    for tick in ticks(ranges[1]) {
        let at = y(tick.log10());
        text += &format!(
            "<line x1=\"{x0}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>\n",
            x0 + width,
            x0 - 4.0,
            at + 4.0
        );
    }
    for (i, line) in points.chunk_by(|a, b| a.0 == b.0).enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let at: Vec<_> = line.iter().map(|(_, p)| (x(p[0]), y(p[1]))).collect();
        let joined: Vec<_> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        text += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            joined.join(" ")
        );
        for (x, y) in at {
            text += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n");
        }
    }
    text
}

/// 1, 2 and 5 times powers of ten between two logarithms; powers alone where those are many.
fn ticks((least, most): (f64, f64)) -> Vec<f64> {
    let steps: &[f64] = if most - least > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = least.floor() as i32..=most.ceil() as i32;
    // Parsed, so that they print short.
    let all =
        powers.flat_map(|power| steps.iter().filter_map(move |step| format!("{step}e{power}").parse::<f64>().ok()));
    all.filter(|tick| (least..=most).contains(&tick.log10())).collect()
}

//! Runs recorded kernels on the GPU and through their references from the same values, and compares every tensor they write.

use std::collections::{HashMap, HashSet};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use farpast::format::{Q4_1, Q6_K};
use farpast::gpu::{Caps, DeviceOptions, Gpu, Kind, Prepared};
use farpast::kernel::{Kernel, Spec, Step};
use farpast::memory::{Blocks, Element, Host, Maths, Tensor, TensorDesc, Tile, stride};
use farpast::program::{Dispatch, Program};
use half::f16;

use crate::cases::{self, CANARY_F32, Case, Setup, TOLERANCE, canaries};

/// The device of kernel tests: the one that `FARPAST_TEST_DRIVER` names, and with bounds checks. Every test fails where there is
/// none. Tests that run at once have it opened once each, as drivers compile on one thread for each time that it is open.
pub fn gpu() -> &'static Gpu {
    static OPEN: [OnceLock<Gpu>; 4] = [const { OnceLock::new() }; 4];
    static USERS: Mutex<[usize; 4]> = Mutex::new([0; 4]);
    /// Of which this thread is a user.
    struct Own(usize);
    impl Drop for Own {
        fn drop(&mut self) {
            USERS.lock().unwrap()[self.0] -= 1;
        }
    }
    thread_local! {
        static OWN: Own = {
            let mut users = USERS.lock().unwrap();
            let least = (0..users.len()).min_by_key(|i| users[*i]).unwrap();
            users[least] += 1;
            Own(least)
        };
    }
    OPEN[OWN.with(|own| own.0)].get_or_init(|| {
        let gpu = Gpu::new(&device()).expect("the tests need a device: install one with scripts/drivers.sh");
        let caps = gpu.caps().to_string();
        println!("device: {caps}");
        let driver = std::env::var("FARPAST_TEST_DRIVER");
        let expected = match driver.as_deref() {
            Ok("lavapipe" | "coopmat") => "llvmpipe",
            Ok("swiftshader") => "SwiftShader",
            Ok("system") | Err(_) => "",
            Ok(other) => panic!("FARPAST_TEST_DRIVER is lavapipe, swiftshader, coopmat or system, not {other}"),
        };
        assert!(caps.contains(expected), "expected a device of {expected}, found {caps}");
        let needs_matrices = driver.as_deref() == Ok("coopmat");
        assert!(!needs_matrices || gpu.caps().matrices.is_some(), "{caps} has no cooperative matrices");
        gpu
    })
}

/// How tests open a device.
pub fn device() -> DeviceOptions {
    DeviceOptions { device: std::env::var("FARPAST_DEVICE").ok(), checked: true, coopmat: true }
}

/// Of a device that has nothing but what every WebGPU device has.
pub fn plain_caps() -> Caps {
    Caps {
        name: "Toy".into(),
        driver: String::new(),
        backend: String::new(),
        kind: Kind::Other,
        max_binding: 128 << 20,
        max_groups: 65535,
        subgroup: 0,
        f16: false,
        dot8: false,
        matrices: None,
        timestamps: false,
    }
}

/// Runs every case of a kernel; fails on the first element out of bounds.
pub fn check(kernel: &str) {
    check_all(cases::of(kernel));
}

/// As [`check`], by the cases with cooperative matrices alone.
pub fn check_coopmat(kernel: &str) {
    check_all(cases::of(kernel).into_iter().filter(by_coopmat).collect());
}

fn check_all(cases: Vec<Case>) {
    let (run, not): (Vec<_>, Vec<_>) = cases.into_iter().partition(runs);
    println!("{} cases are not run, as the device has not the subgroups or the maths that they need", not.len());
    for case in run {
        let began = Instant::now();
        let setup = case.setup();
        expect_equal(&setup);
        println!("{:5} ms: {}", began.elapsed().as_millis(), setup.name);
    }
}

/// Whether the device has the subgroups and the maths that the case needs.
pub fn runs(case: &Case) -> bool {
    let tile = tile(case);
    let caps = gpu().caps();
    let has_maths = match tile.maths {
        Maths::F32 => true,
        Maths::F16 => caps.f16,
        Maths::Dot8 => caps.dot8,
        // lavapipe names one shape and computes all of them.
        Maths::Coopmat => caps.matrices.is_some_and(|has| {
            let (is_shape, fits) = (has.shape == tile.matrices.shape, has.subgroup <= tile.matrices.subgroup);
            (is_shape || caps.name.contains("llvmpipe")) && fits
        }),
    };
    has_maths && (!tile.broadcast || caps.subgroup >= 8)
}

fn by_coopmat(case: &Case) -> bool {
    tile(case).maths == Maths::Coopmat
}

fn tile(case: &Case) -> Tile {
    match case {
        Case::Linear { tile, .. }
        | Case::LinearNorm { tile, .. }
        | Case::LinearGlu { tile, .. }
        | Case::LinearRope { tile, .. }
        | Case::Attention { tile, .. }
        | Case::Rmsnorm { tile, .. }
        | Case::OutputNorm { tile, .. } => *tile,
        Case::Aoc(case) => case.tile(),
        _ => Tile::SOFTWARE,
    }
}

/// Fails on the first element that is not what the reference says.
pub fn expect_equal(setup: &Setup) {
    match mismatch(setup, &setup.program.dispatches.iter().cloned().map(Some).collect::<Vec<_>>()) {
        Ok(None) => {}
        Ok(Some(what)) => panic!("{}: {what}", setup.name),
        Err(e) => panic!("{}: {e}", setup.name),
    }
}

/// Runs on the GPU what `replaced` has in place of each dispatch, from what the references of those before it left, and says how
/// the results first differ from the reference's. Where it has nothing, only the reference runs.
pub fn mismatch(setup: &Setup, replaced: &[Option<Dispatch>]) -> farpast::Result<Option<String>> {
    let gpu = gpu();
    let buffers = gpu.allocate(&setup.memory, |_, _| ())?;
    let program = |d: &Option<Dispatch>| Program { dispatches: Vec::from_iter(d.clone()) };
    let programs: Vec<_> = replaced.iter().map(program).collect();
    let mut prepared = gpu.prepare(&buffers, &programs.iter().collect::<Vec<_>>())?;
    for step in &setup.steps {
        let mut state = setup.hosts();
        for ((dispatch, program), prepared) in setup.program.dispatches.iter().zip(&programs).zip(&mut prepared) {
            if program.dispatches.is_empty() {
                run_reference(dispatch, step, &mut state);
                continue;
            }
            for t in dispatch.tensors.iter().filter(|t| !matches!(state[t], Host::Weight(_))) {
                gpu.write_host(&buffers, *t, &state[t])?;
            }
            gpu.run(&buffers, prepared, step)?;
            let before: Vec<_> = dispatch.written().map(|t| state[&t].clone()).collect();
            run_reference(dispatch, step, &mut state);
            for (t, before) in dispatch.written().zip(&before) {
                let (desc, sums) = (setup.memory.desc(t), setup.magnitudes.get(&t).map(Vec::as_slice));
                let found = read(gpu, &buffers, t, desc)?;
                if let Some(what) = compare(desc, before, &state[&t], &found, sums, setup.tolerance) {
                    let name = dispatch.kernel.name;
                    return Ok(Some(format!("{name}, {} tokens, {} outputs: {what}", step.n_tokens, step.n_outputs)));
                }
            }
        }
    }
    Ok(None)
}

/// Runs the whole program on the GPU and returns what `wanted` holds afterwards.
pub fn run(setup: &Setup, wanted: &[Tensor]) -> Vec<Host> {
    let gpu = gpu();
    let buffers = gpu.allocate(&setup.memory, |_, _| ()).unwrap();
    for (t, host) in setup.hosts() {
        if !matches!(host, Host::Weight(_)) {
            gpu.write_host(&buffers, t, &host).unwrap();
        }
    }
    let mut prepared: Vec<Prepared> = gpu.prepare(&buffers, &[&setup.program]).unwrap();
    for step in &setup.steps {
        gpu.run(&buffers, &mut prepared[0], step).unwrap();
    }
    wanted.iter().map(|t| read(gpu, &buffers, *t, setup.memory.desc(*t)).unwrap()).collect()
}

/// Whether this process runs test `name` alone, so that no other disturbs what it counts. If not, it has run it in one that does.
pub fn is_alone(name: &str) -> bool {
    const ALONE: &str = "FARPAST_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let test = std::env::current_exe().unwrap();
    let output = Command::new(test).args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    println!("{out}{err}");
    assert!(output.status.success() && out.contains("1 passed"));
    false
}

/// Bytes of this process in memory; 0 where the system does not tell.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).map_or(0, |pages| pages.parse::<usize>().unwrap() * 4096)
}

/// The bits of what the last dispatch writes first of all.
pub fn result_bits(setup: &Setup) -> Vec<u32> {
    let last = setup.program.dispatches.last().unwrap().written().next().unwrap();
    match &run(setup, &[last])[0] {
        Host::F32(v) => v.iter().map(|x| x.to_bits()).collect(),
        other => other.u32().to_vec(),
    }
}

fn run_reference(dispatch: &Dispatch, step: &Step, state: &mut HashMap<Tensor, Host>) {
    let take = |t: &Tensor| state.insert(*t, Host::U32(vec![])).unwrap();
    let mut tensors: Vec<_> = dispatch.tensors.iter().map(take).collect();
    (dispatch.kernel.reference)(&dispatch.spec, step, &mut tensors);
    state.extend(dispatch.tensors.iter().copied().zip(tensors));
}

fn read(gpu: &Gpu, buffers: &farpast::gpu::Buffers, t: Tensor, desc: &TensorDesc) -> farpast::Result<Host> {
    let bytes = gpu.read(buffers, t, desc.bytes().next_multiple_of(4))?;
    Ok(desc.host_of(&bytes))
}

/// The first element of `found` that is not as `expected`: within the bound where the reference changed it, else of the
/// very bits it had `before`. Only the padding of rows that the reference wrote may hold anything.
fn compare(
    desc: &TensorDesc,
    before: &Host,
    expected: &Host,
    found: &Host,
    magnitudes: Option<&[f64]>,
    tolerance: f64,
) -> Option<String> {
    if let (Host::Blocks(before), Host::Blocks(expected), Host::Blocks(found)) = (before, expected, found) {
        return compare_blocks(desc, before, expected, found);
    }
    let pitch = if desc.element == Element::U32 { desc.cols } else { stride(desc.cols) };
    let wrong =
        |i: usize, e: String, f: String| Some(format!("{}[{}, {}] is {f}, not {e}", desc.name, i / pitch, i % pitch));
    let untouched = |bits: &dyn Fn(&Host, usize) -> u32, row: usize| {
        (row * pitch..row * pitch + desc.cols).all(|i| bits(before, i) == bits(expected, i))
    };
    let bits = |host: &Host, i: usize| match host {
        Host::F32(v) => v[i].to_bits(),
        Host::F16(v) => v[i].to_bits().into(),
        Host::U32(v) => v[i],
        Host::Blocks(_) | Host::Weight(_) => unreachable!("compared apart, or not written"),
    };
    for row in 0..desc.rows {
        let untouched = untouched(&bits, row);
        for i in row * pitch..(row + 1) * pitch {
            if i % pitch >= desc.cols && !untouched {
                continue;
            }
            let (b, e, f) = (bits(before, i), bits(expected, i), bits(found, i));
            if b == e {
                if f != b {
                    return wrong(i, format!("{b:#010x} as before"), format!("{f:#010x} ({})", shown(found, i)));
                }
                continue;
            }
            let magnitude = magnitudes.and_then(|m| m.get(i)).copied().unwrap_or(0.0);
            let close = match (expected, found) {
                (Host::F32(e), Host::F32(f)) => close(f[i].into(), e[i].into(), tolerance, 1.0, magnitude),
                // Twice the error of rounding, which WGSL leaves to the device; half the smallest f16 more near 0.
                (Host::F16(e), Host::F16(f)) => {
                    let (f, e) = (f[i].to_f64(), e[i].to_f64());
                    close(f, e, 1.0 / 1024.0, f16::MIN_POSITIVE.to_f64(), 0.0)
                        || close(f, e, tolerance, 1e-3, magnitude)
                }
                _ => e == f,
            };
            if !close {
                return wrong(i, shown(expected, i), shown(found, i));
            }
        }
    }
    None
}

/// As [`compare`]. A scale may be rounded up where the reference rounds down, and with it, or at a tie, one quant in 16 by one.
fn compare_blocks(desc: &TensorDesc, before: &Blocks, expected: &Blocks, found: &Blocks) -> Option<String> {
    let words = before.words().iter().zip(expected.words()).zip(found.words());
    if let Some((i, ((b, _), f))) = words.enumerate().find(|(_, ((b, e), f))| b == e && f != b) {
        return Some(format!("word {i} of {} is {f:#010x}, not {b:#010x} as before", desc.name));
    }
    let (mut written, mut other) = (0, 0);
    for row in 0..desc.rows {
        let [(b, b_scales), (e, e_scales), (f, f_scales)] = [before, expected, found].map(|blocks| blocks.quants(row));
        let bits = |scales: &[f16]| scales.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if b == e && bits(&b_scales) == bits(&e_scales) {
            continue;
        }
        let close_scale = |(e, f): (&f16, &f16)| close(f.to_f64(), e.to_f64(), 1.0 / 1024.0, 2e-4, 0.0);
        if !e_scales.iter().zip(&f_scales).all(close_scale) || e.iter().zip(&f).any(|(e, f)| (e - f).abs() > 1) {
            return Some(format!("{}[{row}] is {f:?} × {f_scales:?}, not {e:?} × {e_scales:?}", desc.name));
        }
        written += e.len();
        other += e.iter().zip(&f).filter(|(e, f)| e != f).count();
    }
    (other > written / 16).then(|| format!("{other} of {written} quants of {} are others", desc.name))
}

fn shown(host: &Host, i: usize) -> String {
    match host {
        Host::F32(v) => format!("{:e}", v[i]),
        Host::F16(v) => format!("{:e}", v[i].to_f32()),
        other => other.u32()[i].to_string(),
    }
}

/// NaN is close to nothing, an infinity only to itself.
fn close(found: f64, expected: f64, tolerance: f64, one: f64, magnitude: f64) -> bool {
    if expected.is_infinite() || found.is_infinite() {
        return found == expected;
    }
    (found - expected).abs() <= tolerance * (one + expected.abs().max(magnitude))
}

/// The dispatch with its assembled shader, constants and all, as `mutate` makes it; `None` where it makes nothing of it.
pub fn mutated(dispatch: &Dispatch, mutate: &dyn Fn(&str) -> Option<String>) -> Option<Dispatch> {
    let text = mutate(&assembled(dispatch))?;
    let kernel = Kernel { source: Box::leak(text.into_boxed_str()), ..*dispatch.kernel };
    Some(Dispatch { kernel: Box::leak(Box::new(kernel)), spec: enabled(dispatch), ..dispatch.clone() })
}

/// The shader of a dispatch without what the joiner adds to every kernel, so that it can be joined again.
pub fn assembled(dispatch: &Dispatch) -> String {
    let empty = Kernel { source: "", ..*dispatch.kernel };
    let added = empty.wgsl(&enabled(dispatch));
    let text = dispatch.kernel.wgsl(&dispatch.spec);
    text.strip_prefix(&added).expect("a shader begins with what is common to all").into()
}

/// A spec that enables what the dispatch's does.
fn enabled(dispatch: &Dispatch) -> Spec {
    let text = dispatch.kernel.wgsl(&dispatch.spec);
    let extensions = ["f16", "wgpu_cooperative_matrix"].into_iter();
    let enabled = extensions.filter(|name| text.contains(&format!("\nenable {name};\n")));
    enabled.fold(Spec::default(), Spec::enable)
}

/// Fails unless each fault, a text in the assembled shader and what it is made, is seen by some case of the kernel.
pub fn catches(kernel: &str, faults: &[(&str, &str)]) {
    let setups: Vec<_> = small(kernel).into_iter().map(Case::setup).collect();
    catches_with(kernel, &setups, faults);
}

/// As [`catches`] and [`catches_any_fault`], by the cases without and, where the device has them, those with subgroups alone.
pub fn catches_in_each_tier(kernel: &str, faults: [&[(&str, &str)]; 2]) {
    for (broadcast, faults) in [false, true].into_iter().zip(faults) {
        let cases = small(kernel).into_iter().filter(|case| tile(case).broadcast == broadcast);
        let setups: Vec<_> = cases.map(Case::setup).collect();
        if broadcast && gpu().caps().subgroup < 8 {
            continue;
        }
        catches_with(kernel, &setups, faults);
        catches_any_fault_with(kernel, &setups);
    }
}

/// As [`catches`] and [`catches_any_fault`], by the cases with cooperative matrices alone, where the device has them.
pub fn catches_by_coopmat(kernel: &str, faults: &[(&str, &str)]) {
    let setups: Vec<_> = small(kernel).into_iter().filter(by_coopmat).map(Case::setup).collect();
    if setups.is_empty() {
        println!("no case is run, as the device has no cooperative matrices");
        return;
    }
    catches_with(kernel, &setups, faults);
    catches_any_fault_with(kernel, &setups);
}

fn catches_with(kernel: &str, setups: &[Setup], faults: &[(&str, &str)]) {
    assert!(faults.len() >= 3, "{kernel}: at least three faults");
    for (from, to) in faults {
        let mutate = |text: &str| text.contains(from).then(|| text.replace(from, to));
        let caught = caught(kernel, setups, &mutate);
        assert!(caught != Some(false), "{kernel}: `{from}` made `{to}` and no case saw it");
        assert!(caught.is_some(), "{kernel}: `{from}` made `{to}` changes no shader, or nothing that compiles");
    }
}

/// Fails unless every constant of the kernel's specs matters, and most changes of its operators do.
pub fn catches_any_fault(kernel: &str) {
    let setups: Vec<_> = small(kernel).into_iter().map(Case::setup).collect();
    catches_any_fault_with(kernel, &setups);
}

fn catches_any_fault_with(kernel: &str, setups: &[Setup]) {
    let dispatch = |s: &Setup| s.program.dispatches.iter().find(|d| d.kernel.name == kernel).cloned();
    let first = setups.iter().find_map(dispatch).unwrap();
    for (name, value) in first.spec.constants() {
        let line = |text: &str| text.lines().find(|l| l.starts_with(&format!("const {name}: "))).map(String::from);
        let mutate = |text: &str| {
            let line = line(text)?;
            let value = line.split(" = ").nth(1)?.trim_end_matches([';', 'u', 'f']);
            let other = match line.contains(": f32") {
                true => format!("{}f", value.parse::<f32>().ok()? * 1.5 + 1e-3),
                // Nothing to see where a case has the value that the mutation gives.
                false => format!("{}u", value.parse::<u32>().ok()?.checked_sub(1).unwrap_or(1)),
            };
            let declared = line.split(" = ").next()?;
            Some(text.replace(&line, &format!("{declared} = {other};")))
        };
        if !TILING.contains(name) {
            let caught = caught(kernel, setups, &mutate);
            assert_ne!(caught, Some(false), "{kernel}: no case sees another {name} than {value:?}");
        }
    }
    let (mut seen, mut survived) = (0, Vec::new());
    let mut mutations = mutations(&assembled(&first));
    mutations.retain(|(line, ..)| !NO_FAULT.iter().any(|part| line.contains(part)));
    for (line, from, to) in mutations.iter().step_by(mutations.len().div_ceil(MUTATIONS).max(1)) {
        let mutate = |text: &str| text.contains(line).then(|| text.replacen(line, &line.replacen(from, to, 1), 1));
        match caught(kernel, setups, &mutate) {
            Some(true) => seen += 1,
            Some(false) => survived.push(format!("`{from}` → `{to}` in {}", line.trim())),
            None => {}
        }
    }
    println!("{kernel}: {seen} mutations caught; survived: {survived:#?}");
    assert!(
        seen >= 3.min(mutations.len()) && seen >= 2 * survived.len(),
        "{kernel}: {seen} caught, these survived: {survived:#?}"
    );
}

/// Constants that only divide the work: a case may have slack.
const TILING: &[&str] = &["LANES", "ROWS", "TOKENS", "HEADS", "RUN", "MOST"];

/// Operator changes tried for each kernel.
const MUTATIONS: usize = 12;

/// Lines of which a change of an operator may crash, as loads and stores of matrices have no bounds checks, or gives an equal result on
/// every input: a guard of an index that is used no more, a
/// cut that keeps everything either way, ids of lanes that are never equal, a factor that all masses have, from where values are
/// measured that are told apart by differences.
const NO_FAULT: &[&str] = &[
    "V - 1u)",
    "if part > 0u && share >= 1.0",
    "if part == 0u && (want.top_k",
    "best_ids[i] < ",
    "largest <= 3",
    "!(distance_of(x) > width)",
    "let off = ",
    "let room = ",
    "let shift = ",
    "let all = ",
    "if all && turn < ",
    "lane + n * WG, all)",
    "(x - largest) / ",
    "let origin = ",
    "let of_best = ",
    "coopLoad",
    "coopStore",
    "let share = ",
    "let first = min(lane.subgroup",
];

/// Each operator of the code, one change at a time: (line, from, to). Loops stay, and what they end with, so that they end.
fn mutations(text: &str) -> Vec<(String, &'static str, &'static str)> {
    const RULES: &[(&str, &str)] = &[
        (" <= ", " < "),
        (" < ", " <= "),
        (" + ", " * "),
        (" - ", " + "),
        (" * ", " + "),
        (" / ", " * "),
        ("max(", "min("),
        ("min(", "max("),
        ("exp(", "exp2("),
    ];
    const BUILT_IN: &[&str] = &["min", "max", "select", "vec4", "x", "y", "z", "w", "let", "var"];
    // Variables, that is: constants are in capitals and numbers begin with digits.
    let words = |l: &str| -> Vec<String> {
        l.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|w| w.starts_with(|c: char| c.is_lowercase()) && !BUILT_IN.contains(w))
            .map(String::from)
            .collect()
    };
    // `let name = `, `var name = `, `name = ` and `name[…] = `.
    let assigned = |l: &str| {
        let target = l.split_once(" = ")?.0;
        words(target.split(['[', ':']).next()?).last().cloned()
    };
    let bare: Vec<&str> = text.lines().map(|l| l.split("//").next().unwrap_or_default().trim()).collect();
    let loops = bare.iter().filter(|l| l.starts_with("for "));
    let mut bounds: HashSet<String> = loops.filter_map(|l| l.split(';').nth(1)).flat_map(words).collect();
    let ends = |l: &str, bounds: &HashSet<String>| assigned(l).is_some_and(|name| bounds.contains(&name));
    while let Some(line) =
        bare.iter().find(|l| ends(l, &bounds) && !l.starts_with("for ") && !words(l).iter().all(|w| bounds.contains(w)))
    {
        bounds.extend(words(line));
    }
    let code = |l: &&str| {
        let l = l.trim_start();
        l.starts_with(|c: char| c.is_alphabetic())
            && !ends(l, &bounds)
            && !["for ", "while ", "fn ", "const ", "var<", "struct ", "alias ", "@"].iter().any(|p| l.starts_with(p))
    };
    let lines: Vec<_> = text.lines().filter(code).filter(|l| text.matches(l).count() == 1).collect();
    let rules = |l: &&str| {
        let code = l.split("//").next().unwrap_or_default().to_string();
        RULES.iter().filter(move |(from, _)| code.contains(from)).map({
            let l = l.to_string();
            move |(from, to)| (l.clone(), *from, *to)
        })
    };
    lines.iter().flat_map(rules).collect()
}

/// Whether a case sees the mutation; `None` when no shader has what it changes, or none compiles.
fn caught(kernel: &str, setups: &[Setup], mutate: &dyn Fn(&str) -> Option<String>) -> Option<bool> {
    let mut ran = None;
    for setup in setups {
        let replace = |d: &Dispatch| (d.kernel.name == kernel).then(|| mutated(d, mutate)).flatten().filter(compiles);
        let replaced: Vec<_> = setup.program.dispatches.iter().map(replace).collect();
        if replaced.iter().all(Option::is_none) {
            continue;
        }
        if mismatch(setup, &replaced).expect("a shader that validates runs").is_some() {
            return Some(true);
        }
        ran = Some(false);
    }
    ran
}

fn compiles(dispatch: &Dispatch) -> bool {
    crate::shaders::validate(&dispatch.kernel.wgsl(&dispatch.spec)).is_ok()
}

/// The cases that faults are looked for with: those whose sizes are small.
fn small(kernel: &str) -> Vec<Case> {
    let small = |case: &Case| match *case {
        Case::Embed { v, .. } => v < 2000,
        Case::Rmsnorm { c, .. } => c < 600,
        Case::Linear { tile, format, .. } if tile.maths != Maths::F32 => [&Q4_1, &Q6_K].contains(&format),
        Case::Linear { n, k, t, .. } => n < 100 && (100..200).contains(&k) && t.len() == 3,
        Case::LinearNorm { k, .. } | Case::LinearGlu { k, .. } | Case::LinearRope { k, .. } => k < 200,
        Case::NormRopeStore { dims, .. } | Case::KvStore { dims, .. } => dims.head_dim < 90,
        Case::Attention { dims, .. } => dims.head_dim < 60,
        Case::Sample { v, .. } | Case::Penalize { v, .. } | Case::Logprobs { v, .. } => v < 2000,
        Case::Aoc(case) => case.is_small(),
        Case::Bias { .. }
        | Case::Geglu { .. }
        | Case::Softcap { .. }
        | Case::Swiglu { .. }
        | Case::OutputNorm { .. } => true,
    };
    cases::of(kernel).into_iter().filter(small).filter(runs).collect()
}

fn swiglu() -> Setup {
    Case::Swiglu { f: 6, t: 2, scale: 1.0 }.setup()
}

/// What `compare` says of swiglu's result after `plant` has changed it.
fn planted(plant: impl FnOnce(&mut [f32])) -> Option<String> {
    let setup = swiglu();
    let dispatch = &setup.program.dispatches[0];
    let y = dispatch.written().next().unwrap();
    let mut state = setup.hosts();
    run_reference(dispatch, &setup.steps[0], &mut state);
    let mut found = state[&y].clone();
    plant(found.f32_mut());
    compare(setup.memory.desc(y), &canaries(setup.memory.desc(y)), &state[&y], &found, None, TOLERANCE)
}

#[test]
fn comparison_accepts_the_reference_and_anything_in_padding() {
    assert_eq!(planted(|_| ()), None);
    assert_eq!(planted(|y| y[6] = 17.0), None);
}

#[test]
fn comparison_rejects_a_wrong_value() {
    assert_eq!(planted(|y| y[9] += 0.9e-5), None);
    assert!(planted(|y| y[9] += 3e-5).unwrap().starts_with("y[1, 1]"));
    assert!(planted(|y| y[0] = 0.0).unwrap().starts_with("y[0, 0]"));
}

#[test]
fn comparison_rejects_nan_and_infinity() {
    for x in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(CANARY_F32)] {
        assert!(planted(|y| y[10] = x).unwrap().starts_with("y[1, 2]"), "{x}");
    }
}

#[test]
fn comparison_rejects_a_touched_canary() {
    for x in [0.0, f32::NAN, f32::from_bits(CANARY_F32 + 1)] {
        assert!(planted(|y| y[16] = x).unwrap().starts_with("y[2, 0]"));
        // The padding of a row that is not in use.
        assert!(planted(|y| y[23] = x).unwrap().starts_with("y[2, 7]"));
        assert!(planted(|y| *y.last_mut().unwrap() = x).is_some());
    }
}

#[test]
fn infinities_and_nan_of_the_reference_are_close_to_no_number() {
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    assert!(close(infinity, infinity, TOLERANCE, 1.0, 0.0) && !close(infinity, -infinity, TOLERANCE, 1.0, 0.0));
    assert!(!close(1e30, infinity, TOLERANCE, 1.0, 0.0) && !close(infinity, 1e30, TOLERANCE, 1.0, infinity));
    assert!(!close(0.0, nan, TOLERANCE, 1.0, 0.0) && !close(nan, nan, TOLERANCE, 1.0, 0.0));
}

#[test]
fn wrong_values_of_the_device_are_rejected() {
    let plant = |value: &'static str| {
        let setup = swiglu();
        let replaced =
            mutated(&setup.program.dispatches[0], &|text| Some(text.replace("y[i] = ", &format!("y[i] = {value} + "))));
        mismatch(&setup, &[replaced])
    };
    assert_eq!(plant("0.0").unwrap(), None);
    assert!(plant("0.001").unwrap().is_some());
    assert!(plant("bitcast<f32>(step.n_tokens | 0x7fc00000u)").unwrap().is_some());
}

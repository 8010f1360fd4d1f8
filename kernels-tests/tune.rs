//! Which variants of kernels an engine takes: by time, by what the device can do, and by what an earlier run has found.

use std::fs;
use std::path::{Path, PathBuf};

use farpast::engine::{Backend, Engine, EngineOptions, Loading, candidates, share_of_time, tile};
use farpast::gpu::{Caps, Gpu, Kind};
use farpast::memory::{Element, Tile};
use farpast::program::Mode;
use serde_json::Value;

use crate::cases::{Case, of};
use crate::harness::{device, expect_equal, gpu};
use crate::toy;
use crate::toy_chat::temporary;

/// A folder that is gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = temporary(name);
        let _ = fs::remove_dir_all(&folder);
        Self(folder)
    }

    fn tiles(&self) -> PathBuf {
        self.0.join("tiles.json")
    }

    /// The file of compiled pipelines, where the backend keeps any.
    fn pipelines(&self) -> Option<PathBuf> {
        let files = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "bin"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn options(tune: bool, cache: Option<&Path>) -> EngineOptions {
    let cache = cache.map(Path::to_path_buf);
    EngineOptions { backend: Backend::Gpu(device()), batch: 32, kv: Element::F32, tune, cache, ..Default::default() }
}

/// Loads a toy, with a fault planted in the device's shaders perhaps, and says what happened on the way.
fn load(
    options: &EngineOptions,
    fault: Option<(&'static str, &'static str)>,
) -> (farpast::Result<Engine>, Vec<Loading>) {
    let mut seen = Vec::new();
    let mut gpu = Gpu::new(&device()).unwrap();
    if let Some((from, to)) = fault {
        gpu.plant(from, to);
    }
    let engine = Engine::load_on_gpu(gpu, &toy::ALL[2].weights(), options, |loading| seen.push(loading));
    (engine, seen)
}

fn tuned(seen: &[Loading]) -> bool {
    seen.iter().any(|loading| matches!(loading, Loading::Tuning(..)))
}

fn dropped(seen: &[Loading]) -> Vec<&str> {
    seen.iter().filter_map(|l| if let Loading::Dropping(what) = l { Some(what.as_str()) } else { None }).collect()
}

fn logits(engine: &mut Engine) -> Vec<Vec<f32>> {
    let mut session = engine.session();
    session.push(&(1..30).collect::<Vec<_>>());
    let mut all = engine.logits(&mut session).unwrap();
    session.push(&[7]);
    all.extend(engine.logits(&mut session).unwrap());
    all
}

fn caps(kind: Kind, subgroup: u32) -> Caps {
    Caps { kind, subgroup, ..gpu().caps().clone() }
}

#[test]
fn candidates_begin_with_the_default_and_have_a_plain_one() {
    for kind in [Kind::Discrete, Kind::Integrated, Kind::Other, Kind::Software] {
        for subgroup in [0, 4, 8, 32] {
            let caps = caps(kind, subgroup);
            let all = candidates(&caps);
            assert_eq!(all[0], tile(Some(&caps)));
            assert!(all.contains(&Tile { broadcast: false, ..all[0] }));
            assert!(subgroup >= 8 || all.iter().all(|tile| !tile.broadcast), "{all:?}");
            assert!((1..all.len()).all(|i| !all[..i].contains(&all[i])), "{all:?}");
        }
    }
}

#[test]
fn a_candidate_must_be_faster_and_slower_in_nothing() {
    let default = [0.010, 0.200];
    let share = |decode: f64, prefill: f64| share_of_time([0.010 * decode, 0.200 * prefill], default);
    let about = |share: Option<f64>, expected: f64| share.is_some_and(|share| (share - expected).abs() < 1e-9);
    assert!(about(share(0.5, 0.7), 0.6) && about(share(0.8, 1.02), 0.91));
    // No better, within the noise, or slower in one.
    assert_eq!([share(1.0, 1.0), share(0.97, 0.97), share(0.2, 1.1), share(1.1, 0.2)], [None; 4]);
    assert_eq!([share(f64::NAN, 0.5), share(0.5, f64::INFINITY)], [None; 2]);
}

/// Largest difference of a logit: norms sum in another order without subgroups.
const BOUND: f32 = 1e-4;

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert!(!a.is_empty() && a.len() == b.len(), "rows of logits");
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() }).fold(0.0, f32::max)
}

#[test]
fn linears_of_every_candidate_equal_their_references() {
    let kinds = [Kind::Software, Kind::Discrete].map(|kind| candidates(&caps(kind, gpu().caps().subgroup)));
    for (i, to) in kinds.into_iter().flatten().enumerate() {
        // One mode and then the other: they differ in the tokens of a tile only.
        let wanted = [Mode::Decode, Mode::Prefill][i % 2];
        for kernel in ["linear", "linear_glu", "linear_rope"] {
            let case = of(kernel).into_iter().find_map(|mut case| match &mut case {
                Case::Linear { mode, tile, .. }
                | Case::LinearGlu { mode, tile, .. }
                | Case::LinearRope { mode, tile, .. }
                    if *mode == wanted =>
                {
                    *tile = to;
                    Some(case)
                }
                _ => None,
            });
            expect_equal(&case.unwrap().setup());
        }
    }
}

#[test]
fn a_choice_is_kept_until_it_holds_no_more() {
    let folder = Folder::new("tiles");
    let options = options(true, Some(&folder.0));
    let (first, seen) = load(&options, None);
    assert!(tuned(&seen) && dropped(&seen).is_empty(), "{seen:?}");
    let chosen = first.unwrap().tile();
    let written = fs::read(folder.tiles()).unwrap();
    let (again, seen) = load(&options, None);
    assert!(!tuned(&seen) && again.unwrap().tile() == chosen);
    assert_eq!(fs::read(folder.tiles()).unwrap(), written);

    // One of another driver, one of no candidate, no JSON, and too much.
    let with = |field: &str, value: &str| {
        let mut choices: Value = serde_json::from_slice(&written).unwrap();
        choices[0][field] = value.into();
        choices.to_string().into_bytes()
    };
    let damaged = [
        with("device", "another"),
        with("tile", "Tile { lanes: 1000000, rows: 3 }"),
        written[..written.len() / 2].to_vec(),
        vec![b'['; 2 << 20],
    ];
    for text in damaged {
        fs::write(folder.tiles(), &text).unwrap();
        let (engine, seen) = load(&options, None);
        assert!(engine.is_ok() && tuned(&seen), "{}", String::from_utf8_lossy(&text[..text.len().min(200)]));
        assert!(!tuned(&load(&options, None).1));
    }
    assert!(!tuned(&load(&self::options(false, Some(&folder.0)), None).1));
}

#[test]
fn a_folder_that_cannot_be_written_costs_nothing_but_time() {
    let folder = Folder::new("no-folder");
    fs::write(&folder.0, b"a file").unwrap();
    let (engine, seen) = load(&options(true, Some(&folder.0)), None);
    assert!(engine.is_ok() && tuned(&seen));
    fs::remove_file(&folder.0).unwrap();
}

/// Faults of the tier with subgroups: one that no compiler takes, one that computes something else.
const REFUSED: (&str, &str) = ("subgroupBroadcast(x, 3u)", "subgroupBroadcast(x, nothing)");
const WRONG: (&str, &str) = ("subgroupBroadcast(x, 3u)", "subgroupBroadcast(x, 2u)");

#[test]
fn a_variant_that_the_device_fails_at_is_dropped_with_one_warning() {
    let expected = logits(&mut load(&options(false, None), None).0.unwrap());
    if !tile(Some(gpu().caps())).broadcast {
        println!("the device has no tier to drop");
        return;
    }
    for (fault, tune, what) in
        [(REFUSED, false, "nothing"), (REFUSED, true, "nothing"), (WRONG, true, "a wrong result of linear")]
    {
        let (engine, seen) = load(&options(tune, None), Some(fault));
        let mut engine = engine.unwrap();
        let [dropped] = dropped(&seen)[..] else { panic!("one warning: {seen:?}") };
        assert!(dropped.contains("subgroups") && dropped.contains(what), "{dropped}");
        assert!(!engine.tile().broadcast);
        assert!(difference(&logits(&mut engine), &expected) <= BOUND, "{fault:?}");
    }
    // What is not checked is not seen: the fault was there.
    let wrong = logits(&mut load(&options(false, None), Some(WRONG)).0.unwrap());
    assert!(difference(&wrong, &expected) > BOUND);
}

#[test]
fn where_every_variant_fails_it_is_an_error() {
    for tune in [false, true] {
        let refused = load(&options(tune, None), Some(("fn products(", "fn products_of(")));
        assert!(matches!(refused.0, Err(farpast::Error::Device { .. })));
    }
    let wrong = load(&options(true, None), Some(("let half = fma(", "let half = -fma("))).0.err().unwrap().to_string();
    assert!(wrong.contains("a wrong result of linear"), "{wrong}");
}

#[test]
fn compiled_pipelines_are_kept_and_damage_is_harmless() {
    let folder = Folder::new("pipelines");
    fs::create_dir_all(&folder.0).unwrap();
    let options = options(false, Some(&folder.0));
    let expected = logits(&mut load(&options, None).0.unwrap());
    let Some(file) = folder.pipelines() else {
        println!("the backend keeps no pipelines");
        return;
    };
    let written = fs::read(&file).unwrap();
    println!("{} bytes of pipelines", written.len());
    let mut flipped = written.clone();
    flipped[written.len() / 2] ^= 1;
    let damaged = [&written[..], &flipped, &written[..written.len() / 2], &written[..10], b"", &[0; 4096]];
    for bytes in damaged {
        fs::write(&file, bytes).unwrap();
        assert!(logits(&mut load(&options, None).0.unwrap()) == expected);
        let length = fs::metadata(&file).unwrap().len();
        assert!(length > 32 && !fs::read(&file).unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn loading_tells_how_far_it_is() {
    let seen = load(&options(false, None), None).1;
    let (mut compiled, mut uploaded) = (0, 0);
    for loading in &seen {
        match loading {
            Loading::Compiling(done, all) => {
                assert!((1..=*all).contains(done));
                compiled += usize::from(done == all);
            }
            Loading::Uploading(done, all) => {
                assert!((uploaded..=*all).contains(done));
                uploaded = *done;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(compiled > 0 && uploaded > 0, "{seen:?}");
}

//! The toys against the logits that an independent implementation computes (`scripts/golden_models.py`): of each its `ids`,
//! and after those `at` some positions its `logits`.

use std::path::{Path, PathBuf};

use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::Element;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::toy;

#[test]
fn logits_are_those_of_an_independent_implementation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels-tests/golden/toys.json");
    let goldens = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let goldens: Value = serde_json::from_slice(&goldens).unwrap();
    for toy in toy::ALL {
        let golden = &goldens[toy.name];
        let numbers = |value: &Value| -> Vec<f64> {
            let list = value.as_array().unwrap_or_else(|| panic!("no golden of {}", toy.name));
            list.iter().map(|x| x.as_f64().expect("a number")).collect()
        };
        let sha256 = hex(&Sha256::digest(toy.file().write()));
        assert_eq!(
            golden["gguf_sha256"].as_str(),
            Some(sha256.as_str()),
            "{}: the golden is of another file",
            toy.name
        );
        let ids: Vec<_> = numbers(&golden["ids"]).iter().map(|id| *id as u32).collect();
        for backend in [Backend::Gpu(crate::harness::device()), Backend::Cpu] {
            let options = EngineOptions { backend, kv: Element::F32, ..EngineOptions::default() };
            let mut engine = Engine::load(&toy.weights(), &options, |_| ()).unwrap();
            let mut session = engine.session();
            session.push(&ids);
            let found = engine.logits(&mut session).unwrap();
            let at = numbers(&golden["at"]);
            assert!(at.iter().any(|at| *at >= 40.0), "{}: a window and more", toy.name);
            let mut most = 0f64;
            for (at, row) in at.iter().zip(golden["logits"].as_array().expect("a row for each position")) {
                let (expected, found) = (numbers(row), &found[*at as usize]);
                assert_eq!(expected.len(), found.len(), "{}: logits", toy.name);
                for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
                    let error = (f64::from(*found) - expected).abs() / (1.0 + expected.abs());
                    assert!(error <= 1e-4, "{} at {at}, {i}: {found}, not {expected}", toy.name);
                    most = most.max(error);
                }
            }
            println!("{} on {}: {most:.1e}", toy.name, engine.device());
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes `NAME.gguf` of each toy into the folder `FARPAST_TOYS`, for other implementations to read.
#[test]
#[ignore = "writes files"]
fn write_toys() {
    let folder = PathBuf::from(std::env::var_os("FARPAST_TOYS").expect("FARPAST_TOYS names a folder"));
    std::fs::create_dir_all(&folder).unwrap();
    for toy in toy::ALL {
        std::fs::write(folder.join(format!("{}.gguf", toy.name)), toy.file().write()).unwrap();
    }
}

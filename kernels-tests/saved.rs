//! Sessions in files: the same bits afterwards, and files that are not whole or not of this model do no harm.

use std::fs;
use std::path::{Path, PathBuf};

use farpast::attention::Attention;
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::format::Q8_0;
use farpast::memory::Element;
use farpast::{Error, Result};

use crate::allocation::peak;
use crate::cases::Random;
use crate::toy;
use crate::toy_chat::temporary;

fn gpu() -> Backend {
    Backend::Gpu(crate::harness::device())
}

fn load(toy: &toy::Toy, backend: Backend, kv: Element) -> Engine {
    let options = EngineOptions { backend, kv, batch: 32, sequences: 2, ..EngineOptions::default() };
    let mut engine = Engine::load(&toy.weights(), &options, |_| ()).unwrap();
    engine.poison_free_pages().unwrap();
    engine
}

fn tokens(seed: u64, n: usize, toy: &toy::Toy) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.below(toy.vocab) as u32).collect()
}

/// A session of `tokens` in a file of `folder`.
fn saved(engine: &mut Engine, tokens: &[u32], folder: &Path) -> PathBuf {
    let file = folder.join(format!("{}.session", tokens.len()));
    let mut session = engine.session();
    session.push(tokens);
    if !tokens.is_empty() {
        engine.logits(&mut session).unwrap();
    }
    engine.save(&session, &file).unwrap();
    file
}

#[test]
fn restored_session_goes_on_with_the_same_bits() {
    for (i, (name, kv)) in Element::KV.into_iter().enumerate() {
        let toy = &toy::ALL[i];
        let folder = temporary(&format!("saved_{name}"));
        let (shared, next) = (tokens(1, 64, toy), tokens(2, 9, toy));
        let mut engine = load(toy, gpu(), kv);
        let mut other = load(toy, gpu(), kv);
        // Pages in another order.
        other.order_pages((0..other.capacity().pages as u32).map(|i| i ^ 3).collect());
        for len in [0, 1, 15, 16, 17, 31, 32, 33, 64] {
            let mut alone = engine.session();
            alone.push(&[&shared[..len], &next].concat());
            let expected = engine.logits(&mut alone).unwrap();
            let file = saved(&mut engine, &shared[..len], &folder);
            let mut restored = other.restore(&file).unwrap();
            assert_eq!((restored.tokens(), restored.computed()), (&shared[..len], len / 16 * 16));
            restored.push(&next);
            let found = other.logits(&mut restored).unwrap();
            assert!(found == expected[len / 16 * 16..], "{name}, {len} tokens");
        }
        assert_eq!(other.free_pages(), other.capacity().pages);
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn the_interpreter_restores_what_a_device_has_saved() {
    let toy = &toy::ALL[1];
    let folder = temporary("saved_across");
    let shared = tokens(3, 40, toy);
    let file = saved(&mut load(toy, gpu(), Element::Q8_0), &shared, &folder);
    let mut engine = load(toy, Backend::Cpu, Element::Q8_0);
    let mut restored = engine.restore(&file).unwrap();
    let again = folder.join("again");
    engine.save(&restored, &again).unwrap();
    assert_eq!(fs::read(&file).unwrap(), fs::read(&again).unwrap());
    let logits = engine.logits(&mut restored).unwrap();
    assert!(logits.len() == 8 && logits.iter().flatten().all(|x| x.is_finite()));
    fs::remove_dir_all(folder).unwrap();
}

#[track_caller]
fn expect_file_error(result: Result<impl Sized>, what: &str) {
    match result.err() {
        Some(Error::File { what: found, .. }) if found == what => {}
        other => panic!("expected an error of {what}, found {other:?}"),
    }
}

#[test]
fn files_of_others_are_refused_by_what_is_other() {
    let folder = temporary("saved_others");
    let (toy, other) = (&toy::ALL[0], &toy::ALL[1]);
    let mut engine = load(toy, Backend::Cpu, Element::F16);
    let file = saved(&mut engine, &tokens(4, 33, toy), &folder);
    expect_file_error(load(other, Backend::Cpu, Element::F16).restore(&file), "model");
    let rounded = toy.weights().quantized(&Q8_0).unwrap();
    let cpu = EngineOptions { backend: Backend::Cpu, ..EngineOptions::default() };
    expect_file_error(Engine::load(&rounded, &cpu, |_| ()).unwrap().restore(&file), "model");
    expect_file_error(load(toy, Backend::Cpu, Element::Q8_0).restore(&file), "KV format");
    let bytes = fs::read(&file).unwrap();
    let with = |i: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[i] = byte;
        let changed = folder.join("changed");
        fs::write(&changed, bytes).unwrap();
        changed
    };
    expect_file_error(engine.restore(with(0, b'F')), "magic");
    expect_file_error(engine.restore(with(8, 2)), "version");
    // Of a page, and of the hash itself.
    expect_file_error(engine.restore(with(bytes.len() - 100, !bytes[bytes.len() - 100])), "contents");
    expect_file_error(engine.restore(with(bytes.len() - 1, !bytes[bytes.len() - 1])), "contents");
    expect_file_error(engine.restore(&folder), "file type");
    assert!(matches!(engine.restore(folder.join("none")), Err(Error::Io { .. })));

    let small = EngineOptions { backend: Backend::Cpu, context: 16, batch: 8, ..EngineOptions::default() };
    let mut small = Engine::load(&toy.weights(), &small, |_| ()).unwrap();
    assert!(matches!(small.restore(&file), Err(Error::ContextFull { tokens: 32, context: 16 })));
    let window = engine.session_with(Attention::Window(32)).unwrap();
    assert!(matches!(engine.save(&window, folder.join("window")), Err(Error::Request { .. })));
    assert!(!folder.join("window").exists());
    assert_eq!(engine.free_pages(), engine.capacity().pages);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn damaged_files_are_errors_that_allocate_no_more_than_the_file_has() {
    let folder = temporary("saved_fuzz");
    let toy = &toy::ALL[0];
    let mut engine = load(toy, Backend::Cpu, Element::Q4_0);
    let bytes = fs::read(saved(&mut engine, &tokens(5, 37, toy), &folder)).unwrap();
    let mut random = Random(11);
    let file = folder.join("damaged");
    for round in 0..600 {
        let mut damaged = bytes.clone();
        match round % 4 {
            // A header's byte or word, any byte, a part cut out or off, or added.
            0 => damaged[random.below(60)] ^= 1 << random.below(8),
            1 => damaged[4 * random.below(15)..][..4].copy_from_slice(&(random.next() as u32).to_le_bytes()),
            2 => damaged[random.below(bytes.len())] ^= 1 << random.below(8),
            _ => {
                let (from, n) = (random.below(bytes.len()), 1 + random.below(200));
                match random.below(3) {
                    0 => damaged.truncate(from),
                    1 => drop(damaged.drain(from..(from + n).min(bytes.len()))),
                    _ => damaged.splice(from..from, random.bytes(n)).for_each(drop),
                }
            }
        }
        if damaged == bytes {
            continue;
        }
        fs::write(&file, &damaged).unwrap();
        let (result, most) = peak(|| engine.restore(&file).map(drop));
        assert!(result.is_err(), "round {round}");
        // Beyond the file's bytes the reader's buffer, the text of an error and the list of tensors.
        assert!(most <= damaged.len() + (16 << 10), "round {round}: {most} bytes for a file of {}", damaged.len());
    }
    assert_eq!(engine.free_pages(), engine.capacity().pages);
    fs::remove_dir_all(folder).unwrap();
}

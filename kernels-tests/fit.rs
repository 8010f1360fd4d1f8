//! What does not fit is refused before anything is allocated.

use std::fs;

use farpast::Error;
use farpast::engine::{Backend, Engine, EngineOptions, Recorded, available_memory, expect_fits, left_in_groups};
use farpast::gpu::{Caps, Kind};
use farpast::memory::Element;

use crate::harness::plain_caps;
use crate::toy::{self, CONTEXT};
use crate::toy_chat::temporary;

fn options(context: usize) -> EngineOptions {
    EngineOptions { backend: Backend::Cpu, context, sequences: 3, batch: 24, ..EngineOptions::default() }
}

fn total(toy: &toy::Toy, options: &EngineOptions) -> usize {
    Recorded::new(&toy.weights(), options, None).unwrap().plan().total()
}

/// Needed, available and the context that would fit.
#[track_caller]
fn refused<T>(result: farpast::Result<T>) -> (usize, usize, Option<usize>) {
    match result.err().expect("it does not fit") {
        Error::DoesNotFit { needed, available, fitting, .. } => (needed as usize, available as usize, fitting),
        other => panic!("{other}"),
    }
}

#[test]
fn a_byte_too_few_is_refused_and_the_context_named_is_the_longest_that_fits() {
    for toy in toy::ALL {
        for kv in Element::KV.map(|(_, kv)| kv) {
            let weights = toy.weights();
            let with = |context, memory| EngineOptions { memory: Some(memory), kv, ..options(context) };
            let load = |context, memory| Engine::load(&weights, &with(context, memory), |_| ());
            let need = |context| total(toy, &with(context, 0));
            let whole = need(CONTEXT);
            assert_eq!(load(CONTEXT, whole).unwrap().plan().total(), whole);
            assert_eq!(refused(load(CONTEXT, whole - 1)), (whole, whole - 1, Some(CONTEXT - 16)));
            let half = need(48) + 1;
            assert_eq!(refused(load(CONTEXT, half)), (whole, half, Some(48)));
            assert_eq!(refused(load(CONTEXT, need(16))).2, Some(16));
            assert_eq!(refused(load(CONTEXT, need(16) - 1)).2, None);
            assert_eq!(refused(load(16, 0)), (need(16), 0, None));
            assert!(load(48, half).is_ok() && load(64, half).is_err());
        }
    }
}

#[test]
fn on_a_device_it_is_refused_too() {
    let device = crate::harness::device();
    let weights = toy::ALL[2].weights();
    let sizes = EngineOptions { backend: Backend::Gpu(device), memory: Some(1 << 16), ..options(0) };
    let error = Engine::load(&weights, &sizes, |_| panic!("nothing is uploaded")).err().unwrap();
    let caps = crate::harness::gpu().caps();
    let text = error.to_string();
    let start = format!("device {}: the model with a context of {CONTEXT} does not fit: ", caps.name);
    assert!(text.starts_with(&start) && text.ends_with(", 65536 available; no context would fit"), "{text}");
}

#[test]
fn a_tensor_larger_than_a_binding_is_refused_by_name() {
    let weights = toy::ALL[0].weights();
    let caps = |max_binding| Caps { kind: Kind::Software, max_binding, dot8: true, ..plain_caps() };
    // Six sequences' pages of two heads of 16 elements, two bytes each; a page is 6 KiB of a binding.
    let pages = |context: usize| 6 * context * 2 * 16 * 2;
    let context = 10 * CONTEXT;
    let options = EngineOptions { sequences: 6, ..options(context) };
    let least = pages(context);
    // Weights may be split; the logits, 32 rows of 212, may not, nor what penalties look back at, 16 rows of it.
    assert!(32 * 212 * 4 < least && 16 * 4 * (4 * context + 1300) < least);
    assert!(expect_fits(&weights, &options, Some(&caps(least))).is_ok());
    let error = expect_fits(&weights, &options, Some(&caps(least - 4))).unwrap_err();
    assert!(error.to_string().contains("blk.0.k_pages with a context of 960"), "{error}");
    assert_eq!(refused::<()>(Err(error)), (least, least - 4, Some(context - 16)));
}

#[test]
fn pages_given_by_number_do_not_grow_with_the_context() {
    let toy = &toy::ALL[2];
    let sizes = EngineOptions { pages: 6, ..options(CONTEXT) };
    let more = EngineOptions { pages: 7, ..options(CONTEXT) };
    let page = total(toy, &more) - total(toy, &sizes);
    let limited = EngineOptions { memory: Some(total(toy, &more) - 1), ..more };
    assert_eq!(refused(expect_fits(&toy.weights(), &limited, None)).2, Some(CONTEXT - 16));
    // keys and values, layers, heads, positions, elements, bytes
    assert_eq!(page, 2 * toy.layers * toy.kv_heads * 16 * toy.head_dim * 2);
}

#[test]
fn the_tightest_group_around_the_process_counts() {
    let root = temporary("groups");
    let write = |file: &str, text: &str| {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    assert_eq!(left_in_groups(&root), None);
    write("proc/self/cgroup", "4:cpu,memory:/a\n3:cpu:/x\n0::/outer/inner\n");
    assert_eq!(left_in_groups(&root), None);
    write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    write("sys/fs/cgroup/outer/inner/memory.current", "10\n");
    write("sys/fs/cgroup/outer/memory.max", "1000\n");
    write("sys/fs/cgroup/outer/memory.current", "700\n");
    // The kernel gives up what it holds of files.
    write("sys/fs/cgroup/outer/memory.stat", "anon 300\ninactive_file 250\nactive_file 150\nslab 5\n");
    assert_eq!(left_in_groups(&root), Some(700));
    // The first version, in a container: its group is the mounted one, whatever its path on the host.
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "600\n");
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
    write("sys/fs/cgroup/memory/memory.stat", "inactive_file 100\ntotal_inactive_file 20\n");
    assert_eq!(left_in_groups(&root), Some(520));
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn this_machine_has_memory() {
    assert!(available_memory().is_none_or(|bytes| bytes > 1 << 20));
}

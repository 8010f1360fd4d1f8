//! What dispatches are said to move and compute.

use farpast::engine::{Backend, EngineOptions, Recorded};
use farpast::format::{F16, Q8_0};
use farpast::kernel::{Access, Cost, Count, Step};
use farpast::kernels::{AttentionDims, AttentionInputs, Scores};
use farpast::kv::PAGE;
use farpast::memory::{Bytes, Capacity, Element, Memory, WeightRows};
use farpast::program::{Mode, Recorder};
use farpast::weights::Weights;

use crate::cases;
use crate::model::test_model;
use crate::toy;

fn memory(tokens: usize, pages: usize) -> Memory {
    let kv = Element::F16;
    let context = pages * PAGE;
    Memory::new(Capacity { tokens, outputs: 3, sequences: 2, context, pages, kv, binding: usize::MAX })
}

fn cost(m: &Memory, mode: Mode, step: &Step, record: impl FnOnce(&mut Recorder)) -> Vec<Cost> {
    let mut r = Recorder::new(m, mode);
    record(&mut r);
    r.finish().dispatches.iter().map(|d| d.cost(step, m)).collect()
}

#[test]
fn linears_move_their_weights_once_and_a_row_for_each_token() {
    let mut m = memory(9, 1);
    let w = m.weight("w", WeightRows::new(&F16, 7, 33, Bytes::new(vec![0; 7 * 33 * 2])));
    let (x, y) = (m.activation("x", Count::Tokens, 33), m.activation("y", Count::Tokens, 7));
    let step = Step { n_tokens: 3, ..Step::default() };
    // 8 rows of 64 f16; rows of x are 36 f32.
    let read = 8 * 64 * 2 + 3 * 36 * 4;
    let expected = Cost { read, written: 3 * 7 * 4, flops: 3 * 2 * 7 * 33 };
    assert_eq!(cost(&m, Mode::Decode, &step, |r| r.linear(x, &w, y)), [expected]);
    let added = Cost { read: read + 3 * 7 * 4, flops: expected.flops + 3 * 7, ..expected };
    assert_eq!(cost(&m, Mode::Decode, &step, |r| r.linear_add(x, &w, y)), [added]);
    let nothing = Step { n_outputs: 3, ..Step::default() };
    assert_eq!(cost(&m, Mode::Decode, &nothing, |r| r.linear(x, &w, y)), [Cost::default()]);
}

#[test]
fn embedding_reads_the_rows_of_the_tokens_however_the_table_is_split() {
    let mut m = memory(9, 1);
    let step = Step { n_tokens: 3, ..Step::default() };
    let (ids, tokens) = (m.input("ids", Count::Outputs, 1), m.input("tokens", Count::Tokens, 4));
    let y = m.activation("y", Count::Tokens, 64);
    m.capacity.binding = Q8_0.gpu_bytes(8, 64);
    let table = m.weight("table", WeightRows::new(&Q8_0, 16, 64, Bytes::new(vec![0; 16 * 2 * 34])));
    let costs = cost(&m, Mode::Decode, &step, |r| r.embed(tokens, ids, &table, y));
    // A row of 64 has 64 bytes and two scales, in whole units of 16.
    assert_eq!(costs.len(), 2);
    assert_eq!(costs[0], Cost { read: 3 * 16 + 3 * 80, written: 3 * 64 * 4, flops: 3 * 64 });
    assert_eq!(costs[1], Cost { read: 3 * 16, written: 0, flops: 0 });
}

#[test]
fn attention_reads_the_keys_and_values_that_are_seen() {
    let d = AttentionDims { heads: 6, kv_heads: 2, head_dim: 8 };
    let run = |mode, step: Step, window| {
        let mut m = memory(32, 9);
        let inputs = AttentionInputs {
            tokens: m.input("tokens", Count::Tokens, 4),
            sequences: m.input("sequences", Count::Sequences, 4),
            tiles: m.input("tiles", Count::Tiles, 4),
            pages: m.tensor("pages", Element::U32, 18, 2),
            parts: m.tensor("parts", Element::F32, 24, 12),
            near: m.tensor("near", Element::F32, 32 * 6, 4),
            far: None,
        };
        let (q, o) = (m.activation("q", Count::Tokens, 48), m.activation("o", Count::Tokens, 48));
        let kv = ["k", "v"].map(|name| m.tensor(name, Element::F16, 9 * 2 * PAGE, 8));
        cost(&m, mode, &step, |r| r.attention(d, inputs, Scores { scale: 1.0, window, cap: 0.0 }, q, kv, o))
    };
    // 9 pages of 16 keys of 2 heads of 8 f16, and as many values; inputs of one token, one sequence, 9 list entries. Two parts
    // for each head.
    let one = Step { n_tokens: 1, n_sequences: 1, n_tiles: 1, max_pages: 9, ..Step::default() };
    let decode = Cost { read: 144 * 2 * 32 + 16 + 16 + 72 + 192, written: 2 * 6 * 48, flops: 144 * 6 * 36 };
    let merge = Cost { read: 16 + 2 * 6 * 48, written: 192 + 6 * 16, flops: 2 * 6 * 20 };
    assert_eq!(run(Mode::Decode, one, 0), [decode, merge]);
    // The window ends within a page: 37 keys.
    let windowed = Cost { read: decode.read - 107 * 2 * 32, flops: 37 * 6 * 36, ..decode };
    assert_eq!(run(Mode::Decode, one, 37), [windowed, merge]);

    // 20 queries of which the last sees 48 keys, the one before it 47, …
    let step = Step { n_tokens: 20, n_sequences: 1, n_tiles: 1, max_pages: 3, ..Step::default() };
    let inputs = 20 * 16 + 16 + 3 * 8 + 20 * 192;
    let prefill = Cost { read: 48 * 64 + inputs, written: 20 * (192 + 6 * 16), flops: (20 * 48 - 190) * 6 * 36 };
    assert_eq!(run(Mode::Prefill, step, 0), [prefill]);
    let windowed = Cost { read: (21 + 19) * 64 + inputs, flops: 20 * 21 * 6 * 36, ..prefill };
    assert_eq!(run(Mode::Prefill, step, 21), [windowed]);
}

/// By the lists of its cases, whose sequences differ.
#[test]
fn attention_counts_no_pair_too_few() {
    for case in ["attention_decode", "attention_prefill"].into_iter().flat_map(cases::of) {
        let setup = case.setup();
        let (d, step) = (&setup.program.dispatches[0], &setup.steps[0]);
        let names = d.kernel.bindings.iter().filter(|(_, access)| *access != Access::Step).map(|(name, _)| *name);
        let input = |wanted: &str| {
            let i = names.clone().position(|name| name == wanted);
            i.map(|i| setup.host(d.tensors[i]).u32().to_vec())
        };
        let [tokens, pages] = ["tokens", "pages"].map(|name| input(name).unwrap());
        // Each of (first entry, entries, first token, tokens).
        let parts = input("sequences").or(input("tiles")).unwrap();
        let window = d.spec.get_u32("WINDOW");
        let seen = tokens.chunks(4).take(step.n_tokens as usize).enumerate().map(|(t, token)| {
            let holds = |part: &&[u32]| (part[2]..part[2] + part[3]).contains(&(t as u32));
            let (end, sequence) = (token[1] as usize + 1, parts.chunks(4).find(holds).unwrap());
            let first = if window == 0 { 0 } else { end.saturating_sub(window) };
            let list = &pages[2 * sequence[0] as usize..][..2 * sequence[1] as usize];
            let keys = list.chunks(2).map(|entry| {
                let start = entry[1] as usize;
                (start.max(first)..end.min(start + PAGE)).len()
            });
            keys.sum::<usize>()
        });
        let each = d.spec.get_u32("H") * (16 * d.spec.get_u32("D4") + 4);
        let (least, found) = (seen.sum::<usize>() * each, d.cost(step, &setup.memory).flops as usize);
        assert!(found >= least, "{}: {found} of {least}", setup.name);
    }
}

#[test]
fn every_dispatch_of_every_case_has_a_cost_within_its_tensors() {
    for case in cases::all() {
        let setup = case.setup();
        for (d, step) in setup.program.dispatches.iter().flat_map(|d| setup.steps.iter().map(move |step| (d, step))) {
            let cost = d.cost(step, &setup.memory);
            let all: usize = d.tensors.iter().map(|t| setup.memory.desc(*t).bytes()).sum();
            let none = d.groups.iter().any(|extent| extent.groups(step) == 0);
            assert!(none || cost.bytes() > 0, "{}: {cost:?}", setup.name);
            // Every sequence counts as the longest.
            let most = all as u64 * u64::from(step.n_sequences.max(1));
            assert!(cost.read <= most && cost.written <= most, "{}: {cost:?} of {all}", setup.name);
        }
    }
}

/// Bytes of one decode step, over the weights it needs and the keys and values up to its page.
fn overhead(weights: &Weights, depth: usize, kv: Element) -> f64 {
    let options = EngineOptions { backend: Backend::Cpu, context: depth + 1, kv, ..EngineOptions::default() };
    let Recorded { config, memory, programs, .. } = Recorded::new(weights, &options, None).unwrap();
    let max_pages = (depth + 1).div_ceil(PAGE) as u32;
    let step = Step { n_tokens: 1, n_outputs: 1, n_sequences: 1, n_tiles: 1, max_pages, ..Step::default() };
    let moved = programs[Mode::Decode].cost(&step, &memory).bytes();
    let untied = weights.contains("output.weight");
    let matrices = memory.tensors().iter().filter(|t| matches!(t.element, Element::Weight(_)));
    let needed: usize = matrices.filter(|t| !(untied && t.name.starts_with("token_embd"))).map(|t| t.bytes()).sum();
    moved as f64 / (needed + (depth + 1) * config.kv_bytes(kv)) as f64
}

#[test]
fn a_decode_step_moves_little_beyond_the_weights_and_keys_and_values() {
    let weights = Weights::open(test_model()).unwrap();
    for depth in [0, 256, 512, 2048, 8191] {
        for kv in Element::KV.map(|(_, kv)| kv) {
            let overhead = overhead(&weights, depth, kv);
            println!("depth {depth}, {kv:?}: {overhead:.4} times the weights and KV");
            // The parts of attention are f32 whatever they are made of.
            let most = if kv.is_blocks() { 1.08 } else { 1.05 };
            assert!((1.0..=most).contains(&overhead), "depth {depth}, {kv:?}: {overhead}");
        }
    }
    // A toy's activations are no small part, but nothing is read again and again.
    for toy in toy::ALL {
        assert!(
            (1.0..=4.0).contains(&overhead(&toy.weights(), 40, Element::F16)),
            "{}: {}",
            toy.name,
            overhead(&toy.weights(), 40, Element::F16)
        );
    }
}

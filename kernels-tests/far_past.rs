//! Sessions whose far past is in trees of anchors, or forgotten, on toys.

use farpast::Error;
use farpast::attention::Attention;
use farpast::attention::aoc::{self, AocOptions, CHUNK, Far};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::kernels::Cover;
use farpast::kv::{PAGE, PagePool, PageTable};
use farpast::memory::Element;
use farpast::session::Session;

use crate::cases::Random;
use crate::toy::{self, Toy};

const LOCAL: usize = 64;

fn options(kv: Element) -> EngineOptions {
    let backend = Backend::Gpu(crate::harness::device());
    EngineOptions {
        backend,
        aoc: true,
        context: 4096,
        pages: 640,
        batch: 128,
        sequences: 2,
        kv,
        ..EngineOptions::default()
    }
}

fn load(toy: &Toy, options: &EngineOptions) -> Engine {
    crate::harness::gpu();
    let mut engine = Engine::load(&toy.weights(), options, |_| ()).unwrap();
    if matches!(options.backend, Backend::Gpu(_)) {
        engine.poison_free_pages().unwrap();
    }
    engine
}

fn toy(name: &str) -> &'static Toy {
    toy::ALL.iter().find(|toy| toy.name == name).unwrap()
}

/// Those of the queries that a session keeps.
fn kept_pages(engine: &Engine) -> usize {
    let attention = engine.config().attention;
    Cover::kept_pages(attention.heads / attention.kv_heads)
}

fn tokens(n: usize, toy: &Toy) -> Vec<u32> {
    let mut random = Random(5);
    (0..n).map(|_| random.below(toy.vocab) as u32).collect()
}

fn aoc(budget: usize) -> Attention {
    Attention::Aoc(AocOptions { local: LOCAL, budget, ..AocOptions::default() })
}

/// A session that has computed `tokens`, with all trees that were due before the last, and the logits of that.
fn session(engine: &mut Engine, attention: Attention, tokens: &[u32]) -> (Session, Vec<f32>) {
    let mut session = engine.session_with(attention).unwrap();
    session.push(&tokens[..tokens.len() - 1]);
    last_logits(engine, &mut session);
    engine.graduate(&mut session).unwrap();
    session.push(&tokens[tokens.len() - 1..]);
    let logits = last_logits(engine, &mut session);
    (session, logits)
}

fn last_logits(engine: &mut Engine, session: &mut Session) -> Vec<f32> {
    let last = session.tokens().len() - 1;
    let mut logits = Vec::new();
    engine.each_logits(session, last, |_, row| logits = row.to_vec()).unwrap();
    logits
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |most, (a, b)| if (a - b).is_nan() { f32::INFINITY } else { most.max((a - b).abs()) })
}

#[test]
fn a_budget_that_covers_all_rows_is_dense_attention() {
    let f32s = ["llama", "gemma3", "gemma2", "qwen2_yarn"].map(|name| (name, Element::F32));
    for (name, kv) in f32s.into_iter().chain(["llama", "gemma3"].map(|name| (name, Element::Q8_0))) {
        let toy = toy(name);
        let mut engine = load(toy, &options(kv));
        let tokens = tokens(1700, toy);
        let (_, dense) = session(&mut engine, Attention::Dense, &tokens);
        let (covered, found) = session(&mut engine, aoc(1 << 20), &tokens);
        assert!(covered.far() >= 2 * CHUNK, "{name}: {} rows", covered.far());
        let most = difference(&dense, &found);
        println!("{name}, {kv:?}: {} rows in trees, logits differ by {most:e}", covered.far());
        // Sums in another order round some key or value to the next step of 8 bits.
        let bound = if kv == Element::F32 { 2e-5 } else { 1e-3 };
        assert!(most <= bound, "{name}, {kv:?}: {most:e}");
    }
}

#[test]
fn the_device_and_the_references_build_the_same_trees() {
    let toy = toy("llama");
    let mut cpu = load(toy, &EngineOptions { backend: Backend::Cpu, ..options(Element::F32) });
    let mut gpu = load(toy, &options(Element::F32));
    let tokens = tokens(1300, toy);
    let [a, b] = [&mut cpu, &mut gpu].map(|engine| session(engine, aoc(100), &tokens).1);
    assert!(difference(&a, &b) <= 1e-4, "{}", difference(&a, &b));
}

#[test]
fn until_a_tree_is_there_all_bits_are_those_of_dense_attention() {
    let toy = toy("llama");
    let mut engine = load(toy, &options(Element::F16));
    let tokens = tokens(CHUNK, toy);
    let (_, dense) = session(&mut engine, Attention::Dense, &tokens);
    let (early, found) = session(&mut engine, aoc(8), &tokens);
    assert!(early.far() == 0 && dense == found);
}

#[test]
fn decoding_graduates_too_and_every_page_comes_back() {
    let toy = toy("llama");
    let mut engine = load(toy, &options(Element::F16));
    let all = engine.free_pages();
    let tokens = tokens(1000, toy);
    let (mut one, _) = session(&mut engine, aoc(200), &tokens);
    let mut n = 0;
    while one.far() < 2 * CHUNK {
        engine.decode(&mut [&mut one], 16, |_| std::ops::ControlFlow::Continue(())).unwrap();
        n += 16;
        assert!(n < 1500, "{} rows after {n} steps", one.far());
    }
    let dense = one.tokens().len().div_ceil(PAGE);
    // Anchors are a quarter of the rows.
    let held = all - engine.free_pages();
    assert!(held <= dense + 2 * CHUNK / 4 / PAGE + kept_pages(&engine), "{held} pages, dense has {dense}");
    drop(one);
    assert_eq!(engine.free_pages(), all);
}

#[test]
fn rewinding_into_trees_computes_them_again_and_forks_share_them() {
    let toy = toy("llama");
    let mut engine = load(toy, &options(Element::F32));
    let all = engine.free_pages();
    let tokens = tokens(1600, toy);
    let (mut one, first) = session(&mut engine, aoc(1 << 20), &tokens);
    let held = engine.free_pages();

    let mut fork = one.fork();
    assert_eq!((fork.far(), engine.free_pages()), (one.far(), held));
    assert!(difference(&last_logits(&mut engine, &mut fork), &first) <= 2e-5);
    // Its queries, a page of its own, and room for trees of its own.
    assert!(held - engine.free_pages() <= kept_pages(&engine) + 2, "{} pages", held - engine.free_pages());

    // Within the near past nothing is lost.
    one.rewind(1590);
    one.push(&tokens[1590..]);
    assert_eq!(one.pending().len(), 10);
    assert!(difference(&last_logits(&mut engine, &mut one), &first) <= 2e-5);

    let (_, dense) = session(&mut engine, Attention::Dense, &tokens[..700]);
    one.rewind(700);
    assert_eq!((one.far(), one.pending().len()), (0, 700 - PAGE));
    assert!(difference(&last_logits(&mut engine, &mut one), &dense) <= 2e-5);
    // The fork still has what it shares.
    fork.rewind(1599);
    fork.push(&tokens[1599..]);
    assert!(difference(&last_logits(&mut engine, &mut fork), &first) <= 2e-5);
    drop((one, fork));
    assert_eq!(engine.free_pages(), all);
}

#[test]
fn sessions_of_all_kinds_run_in_one_step_as_if_alone() {
    let toy = toy("gemma3");
    let mut engine = load(toy, &options(Element::F32));
    let tokens = tokens(1500, toy);
    let kinds = [aoc(1 << 20), Attention::Window(80)];
    let [mut one, mut two] = kinds.map(|attention| session(&mut engine, attention, &tokens).0);
    let expected = kinds.map(|attention| {
        let (mut alone, _) = session(&mut engine, attention, &tokens);
        alone.push(&[3]);
        last_logits(&mut engine, &mut alone)
    });
    one.push(&[3]);
    two.push(&[3]);
    engine.step(&mut [&mut one, &mut two]).unwrap();
    let found = engine.last_logits(2).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        assert!(difference(found, expected) <= 2e-5, "{}", difference(found, expected));
    }
}

#[test]
fn a_window_holds_its_pages_and_sinks_only() {
    let toy = toy("llama");
    let mut engine = load(toy, &options(Element::F16));
    let all = engine.free_pages();
    let (mut one, _) = session(&mut engine, Attention::Window(LOCAL), &tokens(700, toy));
    engine.decode(&mut [&mut one], 20, |_| std::ops::ControlFlow::Continue(())).unwrap();
    // The first, the near past, and a page that either end of it lies in.
    assert!(all - engine.free_pages() <= 1 + LOCAL / PAGE + 2, "{} pages", all - engine.free_pages());
    one.rewind(300);
    assert_eq!(one.pending().len(), 300 - PAGE);
    last_logits(&mut engine, &mut one);
}

#[test]
fn impossible_settings_are_errors_that_say_what_is_possible() {
    let toy = toy("gemma3");
    let engine = load(toy, &EngineOptions { backend: Backend::Cpu, ..options(Element::F32) });
    let error = |attention| engine.session_with(attention).unwrap_err().to_string();
    assert!(error(aoc(0)).contains("at least 1 row"), "{}", error(aoc(0)));
    let local = |local| Attention::Aoc(AocOptions { local, ..AocOptions::default() });
    // The sliding window of its layers is 21.
    assert!(error(local(20)).contains("at least 21"), "{}", error(local(20)));
    assert!(error(Attention::Window(4)).contains("at least 21"));

    let without = load(toy, &EngineOptions { backend: Backend::Cpu, aoc: false, ..options(Element::F32) });
    assert!(without.session_with(aoc(9)).unwrap_err().to_string().contains("without aoc"));
    let windows = toy::ALL.iter().find(|toy| toy.name == "llama_window").unwrap();
    let refused =
        Engine::load(&windows.weights(), &EngineOptions { backend: Backend::Cpu, ..options(Element::F32) }, |_| ());
    assert!(matches!(refused, Err(Error::Request { .. })));
}

#[test]
fn widths_are_chosen_by_errors_on_kept_queries() {
    let toy = toy("llama");
    let mut engine = load(toy, &options(Element::F16));
    let (mut one, _) = session(&mut engine, aoc(200), &tokens(1300, toy));
    engine.graduate(&mut one).unwrap();
    let heads = one.heads();
    assert_eq!(heads.len(), engine.config().layers * engine.config().attention.kv_heads);
    // What reads more errs less.
    for head in &heads {
        assert!(head.rank >= 1.0 && head.alone <= 1.0, "{head:?}");
        assert!(head.errors[5] <= head.errors[0] && head.errors[0].is_finite(), "{head:?}");
    }
    assert!(heads.iter().any(|head| head.errors[0] > 0.0));
}

#[test]
fn a_query_reads_its_budget_and_no_more_of_a_past_of_any_length() {
    const MOST: usize = 1 << 20;
    let cover = Cover { rows: aoc::largest(MOST), gap: Cover::GAP, lanes: 8, heads: 1, kv_heads: 1, group: 1 };
    let pool = PagePool::new(2 * MOST / PAGE);
    let mut table = PageTable::new(&pool);
    let options = AocOptions { gate: f32::INFINITY, ..AocOptions::default() };
    let mut far = Far::new(options);
    far.prepare(cover, &pool, 0).unwrap();
    while table.len() < MOST {
        table.append(CHUNK).unwrap();
        while let Some(next) = far.next(&table, cover.rows) {
            far.begin(next, &pool, &table).unwrap();
            far.finish(&mut table);
        }
        if far.rows() > options.budget {
            assert!(far.reads() <= options.budget as f64, "{} of {} rows", far.reads(), far.rows());
            assert!(far.reads() > options.budget as f64 / 2.0, "{} of {} rows", far.reads(), far.rows());
        }
        // The near past, and a quarter more for anchors.
        assert!(table.len() - far.end() < options.local + CHUNK || table.len() < 2 * CHUNK + options.local);
    }
    assert!(2 * MOST / PAGE - pool.n_free() <= MOST * 5 / 4 / PAGE + Cover::kept_pages(1));
}

//! The prefix cache: against a simple model of it, and in an engine.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use farpast::Error;
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::kv::{PAGE, PagePool, PageTable};
use farpast::memory::Element;
use farpast::prefix::PrefixCache;

use crate::cases::Random;
use crate::toy;

const PAGES: usize = 53;
const TABLES: usize = 9;

/// A sequence: its tokens are those of its table's positions.
struct Sequence {
    table: PageTable,
    tokens: Vec<u32>,
}

/// Kept prefixes of whole pages, each with the page that holds its end and when it was used.
#[derive(Default)]
struct Model {
    kept: HashMap<Vec<u32>, (u32, u64)>,
    now: u64,
}

impl Model {
    fn covers(&self, tokens: &[u32]) -> usize {
        let pages = (1..=tokens.len() / PAGE).take_while(|n| self.kept.contains_key(&tokens[..n * PAGE]));
        pages.count() * PAGE
    }

    fn touch(&mut self, tokens: &[u32]) {
        self.now += 1;
        for n in 1..=self.covers(tokens) / PAGE {
            self.kept.get_mut(&tokens[..n * PAGE]).unwrap().1 = self.now;
        }
    }

    fn keep(&mut self, tokens: &[u32], table: &PageTable) {
        for n in 1..=tokens.len() / PAGE {
            self.kept.entry(tokens[..n * PAGE].to_vec()).or_insert((table.pages()[n - 1], 0));
        }
        self.touch(tokens);
    }

    /// The least recently used of the prefixes that nothing kept goes on from and no table holds, again and again.
    fn evict(&mut self, pages: usize, held: &HashSet<u32>) -> usize {
        let mut evicted = 0;
        while evicted < pages {
            let before: HashSet<_> = self.kept.keys().map(|tokens| tokens[..tokens.len() - PAGE].to_vec()).collect();
            let idle = self.kept.iter().filter(|(tokens, (page, _))| !before.contains(*tokens) && !held.contains(page));
            let Some((tokens, _)) = idle.min_by_key(|(_, (_, used))| *used) else { break };
            let tokens = tokens.clone();
            self.kept.remove(&tokens);
            evicted += 1;
        }
        evicted
    }
}

/// Says which tokens a position stands behind.
fn content(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(7, |hash: u64, token| (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash >> 29)
}

/// Appends tokens that other sequences may have at the same place, and writes them.
fn grow(s: &mut Sequence, n: usize, slots: &mut [u64], random: &mut Random) -> bool {
    let from = s.table.len();
    let kind = random.below(3) as u32;
    if s.table.append(n).is_err() {
        return false;
    }
    for p in from..from + n {
        s.tokens.push(if p % PAGE == 0 { kind } else { p as u32 });
        slots[s.table.slot(p) as usize] = content(&s.tokens[..p + 1]);
    }
    true
}

#[test]
fn a_cache_of_prefixes_does_what_a_simple_model_does() {
    let mut random = Random(31);
    let pool = PagePool::new(PAGES);
    let mut cache = PrefixCache::new(&pool);
    let (mut model, mut slots) = (Model::default(), vec![0; PAGES * PAGE]);
    let mut all: Vec<Sequence> = vec![];
    let (mut hits, mut evicted, mut full) = (0, 0, 0);
    for operation in 0..100_000 {
        let at = random.below(all.len().max(1));
        let held: HashSet<u32> = all.iter().flat_map(|s| s.table.pages().iter().copied()).collect();
        match random.below(12) {
            0 | 1 if all.len() < TABLES => {
                // As another did, or differently from some token on.
                let mut tokens = all.get(at).map_or(vec![], |s| s.tokens.clone());
                if let (true, n) = (random.below(2) == 0, random.below(tokens.len().max(1))) {
                    tokens.iter_mut().skip(n).take(1).for_each(|token| *token = 1000);
                }
                let table = cache.find(&tokens);
                assert_eq!(table.len(), model.covers(&tokens), "operation {operation}");
                model.touch(&tokens);
                hits += table.len() / PAGE;
                tokens.truncate(table.len());
                all.push(Sequence { table, tokens });
            }
            2 if !all.is_empty() => drop(all.swap_remove(at)),
            3 if (1..TABLES).contains(&all.len()) => {
                let table = all[at].table.fork();
                let tokens = all[at].tokens[..table.len()].to_vec();
                all.push(Sequence { table, tokens });
            }
            4 if !all.is_empty() => {
                let s = &mut all[at];
                s.table.truncate(random.below(s.tokens.len() + 2));
                s.tokens.truncate(s.table.len());
            }
            5 | 6 if !all.is_empty() => {
                let Sequence { table, tokens } = &all[at];
                cache.keep(tokens, table);
                model.keep(tokens, table);
            }
            7 if random.below(4) == 0 => {
                let n = random.below(6);
                let found = cache.evict(n);
                assert_eq!(found, model.evict(n, &held), "operation {operation}");
                evicted += found;
            }
            8.. if !all.is_empty() => {
                let n = random.below(50);
                let needed = all[at].table.pages_for(n).saturating_sub(pool.n_free());
                evicted += cache.evict(needed);
                model.evict(needed, &held);
                full += usize::from(!grow(&mut all[at], n, &mut slots, &mut random));
            }
            _ => {}
        }
        let held: HashSet<u32> = all.iter().flat_map(|s| s.table.pages().iter().copied()).collect();
        let kept: HashSet<u32> = model.kept.values().map(|(page, _)| *page).collect();
        assert_eq!((cache.len(), kept.len()), (model.kept.len(), model.kept.len()), "operation {operation}");
        assert_eq!(pool.n_idle(), kept.difference(&held).count(), "operation {operation}");
        assert_eq!(pool.n_free() + held.union(&kept).count(), PAGES, "operation {operation}");
        if operation % 5 == 0 {
            for s in &all {
                assert_eq!(cache.covers(&s.tokens), model.covers(&s.tokens), "operation {operation}");
                let read = (0..s.tokens.len()).map(|p| slots[s.table.slot(p) as usize]);
                assert!(read.eq((0..s.tokens.len()).map(|p| content(&s.tokens[..p + 1]))), "operation {operation}");
            }
        }
    }
    assert!(hits > 1000 && evicted > 1000 && full > 100, "{hits} hits, {evicted} evicted, {full} times full");
    all.clear();
    drop(cache);
    assert_eq!(pool.n_free(), PAGES);
}

fn engine(toy: &toy::Toy, options: EngineOptions) -> Engine {
    crate::harness::gpu();
    let backend = Backend::Gpu(crate::harness::device());
    let mut engine = Engine::load(&toy.weights(), &EngineOptions { backend, batch: 32, ..options }, |_| ()).unwrap();
    engine.poison_free_pages().unwrap();
    engine
}

fn tokens(seed: u64, n: usize, toy: &toy::Toy) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.below(toy.vocab) as u32).collect()
}

#[test]
fn a_recalled_prefix_gives_the_bits_of_a_computed_one() {
    for (toy, kv) in [(&toy::ALL[0], Element::F16), (&toy::ALL[3], Element::F32), (&toy::ALL[1], Element::Q8_0)] {
        let mut engine = engine(toy, EngineOptions { kv, sequences: 2, ..EngineOptions::default() });
        let (shared, other) = (tokens(1, 64, toy), tokens(2, 9, toy));
        for len in [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64] {
            let all = [&shared[..len], &other].concat();
            let mut alone = engine.session();
            alone.push(&all);
            let expected = engine.logits(&mut alone).unwrap();
            drop(alone);
            let mut first = engine.session();
            first.push(&shared[..len]);
            engine.logits(&mut first).unwrap();
            engine.keep(&first);
            for ends in [all.len(), len] {
                let mut second = engine.session();
                second.push(&all[..ends]);
                let recalled = engine.recall(&mut second);
                // The last token is always computed.
                assert_eq!(recalled, len.min(ends - 1) / 16 * 16, "{len} of {ends}");
                let found = engine.logits(&mut second).unwrap();
                assert!(found == expected[recalled..ends], "{}: {len} shared of {ends}", toy.name);
            }
        }
        let counts = engine.prefix_counts();
        assert!(counts.found > 0 && counts.found < counts.wanted, "{counts:?}");
        assert_eq!(engine.free_pages(), engine.capacity().pages);
    }
}

#[test]
fn other_tokens_recall_nothing() {
    let toy = &toy::ALL[2];
    let mut engine = engine(toy, EngineOptions::default());
    let mut all = tokens(3, 40, toy);
    let mut first = engine.session();
    first.push(&all);
    engine.logits(&mut first).unwrap();
    engine.keep(&first);
    drop(first);
    for (at, expected) in [(39, 32), (32, 32), (31, 16), (16, 16), (15, 0), (0, 0)] {
        let token = std::mem::replace(&mut all[at], toy.vocab as u32 - 1);
        let mut second = engine.session();
        second.push(&all);
        assert_eq!(engine.recall(&mut second), expected, "token {at} differs");
        all[at] = token;
    }
}

#[test]
fn kept_pages_go_when_a_step_needs_them_and_never_fail_one() {
    let toy = &toy::ALL[0];
    let pages = toy::CONTEXT / 16;
    let mut engine = engine(toy, EngineOptions { pages, sequences: 2, ..EngineOptions::default() });
    for i in 0..20 {
        let mut session = engine.session();
        session.push(&tokens(100 + i, toy::CONTEXT - 20 + i as usize, toy));
        engine.recall(&mut session);
        engine.logits(&mut session).unwrap();
        engine.keep(&session);
        // A second one finds no room while the first is there.
        let mut second = engine.session();
        second.push(&tokens(200, 60, toy));
        assert!(matches!(engine.logits(&mut second), Err(Error::OutOfPages { .. })));
    }
    assert!(engine.prefix_counts().evicted > 50);
    assert_eq!(engine.free_pages(), pages);
}

#[test]
fn a_prefix_of_a_thousand_tokens_is_recalled_in_a_tenth_of_the_time() {
    let toy = toy::Toy { layers: 2, ..toy::ALL[2] };
    crate::harness::gpu();
    let backend = Backend::Gpu(crate::harness::device());
    let options = EngineOptions { backend, context: 1040, batch: 128, sequences: 2, ..EngineOptions::default() };
    let mut engine = Engine::load(&toy.weights(), &options, |_| ()).unwrap();
    let prompt = tokens(5, 1000, &toy);
    let first_token = |engine: &mut Engine, recall: bool, end: u32| {
        let mut session = engine.session();
        session.push(&[&prompt[..], &[end]].concat());
        let began = Instant::now();
        if recall {
            engine.recall(&mut session);
        }
        while engine.step(&mut [&mut session]).unwrap()[0].is_none() {}
        let time = began.elapsed();
        engine.keep(&session);
        time
    };
    let (mut cold, mut warm) = (Duration::MAX, Duration::MAX);
    for i in 0..4 {
        cold = cold.min(first_token(&mut engine, false, i));
        warm = warm.min(first_token(&mut engine, true, i + 10));
    }
    println!("first token after {cold:?}, {warm:?} when recalled");
    assert!(10 * warm <= cold, "{warm:?} of {cold:?}");
}

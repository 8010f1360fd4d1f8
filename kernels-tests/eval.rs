//! The measure of approximated attention, on models and cases whose result is known.

use std::ops::ControlFlow;

use farpast::attention::choose;
use farpast::engine::{Backend, Engine, EngineOptions, Replay};
use farpast::eval::{self, Answers, Beam, Dense, Forest, Outcome, Protocol, Query, Report, Tree};
use farpast::kernels::Cover;
use farpast::kv::PAGE;
use farpast::memory::{Bytes, Host};
use farpast::weights::Weights;

use crate::cases::{self, Case};
use crate::toy_chat::toy;

const PROTOCOL: Protocol = Protocol { far: 96, local: 48, tokens: 17 };

fn engine(backend: Backend) -> Engine {
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(toy(None).write())).unwrap();
    // Held-out tokens take more than one step.
    let options = EngineOptions { backend, batch: 16, context: PROTOCOL.length(), ..EngineOptions::default() };
    Engine::load(&weights, &options, |_| ()).unwrap()
}

fn text() -> Vec<u32> {
    (0..PROTOCOL.length() as u32).map(|i| 32 + i * i % 91).collect()
}

fn go_on(_: usize, _: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn outcomes(engine: &mut Engine, methods: &[&str], budget: usize) -> Vec<Outcome> {
    let mut replay = Replay::new(engine).unwrap();
    let dense = Dense::record(&mut replay, &text(), PROTOCOL, &mut go_on).unwrap();
    let outcome = |name: &&str| {
        let method = eval::method(name).unwrap();
        let covers = method.covers(&dense, budget).unwrap();
        dense.compare(&mut replay, &covers, &mut go_on).unwrap()
    };
    methods.iter().map(outcome).collect()
}

#[test]
fn covering_budgets_equal_dense_and_small_ones_do_not() {
    let covering = ["aoc", "window", "snapkv", "quest", "kmeans", "matching"];
    let mut engine = engine(Backend::Cpu);
    for (name, outcome) in covering.iter().zip(outcomes(&mut engine, &covering, 4 * PROTOCOL.far)) {
        assert_eq!(outcome.kl.len(), PROTOCOL.tokens);
        assert!(outcome.mean_kl() <= 1e-6 && outcome.agreement() == 1.0, "{name}: KL {}", outcome.mean_kl());
        let read = outcome.rows + if *name == "matching" { outcome.anchors } else { 0.0 };
        assert_eq!(read, PROTOCOL.far as f64, "{name}");
    }
    for (name, outcome) in eval::METHODS.iter().zip(outcomes(&mut engine, &eval::METHODS, 16)) {
        assert!((1e-6..10.0).contains(&outcome.mean_kl()), "{name}: KL {}", outcome.mean_kl());
        assert!(outcome.bytes_kept > 0 && outcome.bytes_read > 0.0, "{name}");
    }
}

#[test]
fn replay_on_a_device_is_dense_where_nothing_is_far() {
    let mut engine = engine(Backend::Gpu(crate::harness::device()));
    let outcomes = outcomes(&mut engine, &["window", "window"], PROTOCOL.far);
    assert!(outcomes.iter().all(|o| o.mean_kl() <= 1e-6 && o.agreement() == 1.0), "KL {}", outcomes[0].mean_kl());
    assert!(outcomes.iter().all(|o| o.nll_change().abs() < 1e-3));
}

#[test]
fn budgets_bound_what_is_read() {
    let mut engine = engine(Backend::Cpu);
    let row = 2.0 * 2.0 * 16.0;
    let heads = 4.0;
    // Quest reads the bounds of all pages whatever the budget.
    for (budget, name) in [32, 48, 72].into_iter().flat_map(|budget| eval::METHODS.map(|name| (budget, name))) {
        let outcome = &outcomes(&mut engine, &[name], budget)[0];
        let rows = outcome.bytes_read / row / heads;
        assert!(rows <= budget as f64 + 2.0, "{name} reads {rows} rows of {budget}");
        assert!(rows >= budget as f64 / 4.0, "{name} reads {rows} rows of {budget}");
    }
}

#[test]
fn kl_and_agreement_are_those_of_the_distributions() {
    let mut outcome = Outcome::default();
    let logits = |p: [f32; 2]| p.map(|p| p.ln() + 3.0);
    outcome.add(&logits([0.5, 0.5]), &logits([0.25, 0.75]), 1);
    outcome.add(&logits([0.9, 0.1]), &logits([0.9, 0.1]), 0);
    let expected = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
    assert!((outcome.kl[0] - expected).abs() < 1e-6 && outcome.kl[1] < 1e-9, "{:?}", outcome.kl);
    assert!((outcome.mean_kl() - expected / 2.0).abs() < 1e-6 && (outcome.worst_kl() - expected).abs() < 1e-6);
    // Of two that are as likely the first counts.
    assert_eq!(outcome.agreement(), 0.5);
    assert!((outcome.nll_change() - (0.5f64 / 0.75).ln() / 2.0).abs() < 1e-6);
    let perplexity = |p: f64| (-(p.ln() + 0.9f64.ln()) / 2.0).exp();
    assert!((outcome.perplexity_change() - (perplexity(0.75) - perplexity(0.5))).abs() < 1e-6);
}

#[test]
fn reports_have_every_number() {
    let mut outcome =
        Outcome { anchors: 3.0, rows: 4.0, bytes_read: 2048.0, bytes_kept: 1 << 20, ..Outcome::default() };
    outcome.add(&[1.0, 2.0], &[1.0, 2.5], 0);
    let report = |method, budget| Report { method, budget, outcome: outcome.clone(), seconds: [1.0, 2.0] };
    let reports = [report("aoc", 128), report("aoc", 256), report("quest", 256)];
    let json = reports[0].json();
    for field in ["kl", "kl_p99", "nll_change", "perplexity_change", "top1_agreement", "anchors_read", "rows_read"] {
        assert!(json[field].is_number(), "{field} in {json}");
    }
    assert_eq!((&json["method"], &json["budget"]), (&"aoc".into(), &128.into()));
    assert_eq!((&json["bytes_read"], &json["bytes_kept"]), (&2048.0.into(), &(1 << 20).into()));
    let table = eval::markdown(&reports);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2 + reports.len());
    assert!(lines.iter().all(|line| line.matches('|').count() == lines[0].matches('|').count()), "{table}");
    assert!(lines[2].starts_with("| aoc | 128 | 3 | 4 | 2 | 1.00 | "), "{table}");
    let svg = eval::svg("a < b", &reports);
    assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    // A line for each method in each plot, and a dot for each result.
    assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 6));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn texts_and_sizes_that_cannot_be_are_refused() {
    let mut engine = engine(Backend::Cpu);
    let mut replay = Replay::new(&mut engine).unwrap();
    let mut record = |tokens: &[u32], protocol| match Dense::record(&mut replay, tokens, protocol, &mut go_on) {
        Ok(_) => panic!("{protocol:?} is refused"),
        Err(e) => e.to_string(),
    };
    let short = record(&text()[1..], PROTOCOL);
    assert!(short.contains(&format!("at least {}", PROTOCOL.length())), "{short}");
    for (protocol, part) in [
        (Protocol { far: 0, ..PROTOCOL }, "far"),
        (Protocol { far: 40, ..PROTOCOL }, "far"),
        (Protocol { local: 0, ..PROTOCOL }, "local"),
        (Protocol { local: 17, ..PROTOCOL }, "local"),
        (Protocol { tokens: 0, ..PROTOCOL }, "tokens"),
    ] {
        let error = record(&text(), protocol);
        assert!(error.starts_with(part), "{error}");
    }
    let error = eval::method("magic").err().unwrap().to_string();
    assert!(error.contains("aoc, window") && error.contains("magic"), "{error}");
    let mut stop = |_, _| ControlFlow::Break(());
    assert!(Dense::record(&mut replay, &text(), PROTOCOL, &mut stop).is_err());
}

#[test]
fn lookup_of_a_forest_is_that_of_the_kernel() {
    let mut looked_up = 0;
    for case in cases::of("aoc_lookup") {
        let Case::Aoc(cases::aoc::Aoc::Lookup { dims, trees, size, widths, cap, gap, .. }) = case else {
            unreachable!()
        };
        // What leads alone, and a past that is not there, are the kernel's own.
        if gap < 1e6 || trees.is_empty() {
            continue;
        }
        let setup = case.setup();
        let value = |name: &str| {
            let desc = setup.memory.tensors().iter().find(|t| t.name == name).unwrap();
            let known = setup.values.iter().find(|(t, _)| std::ptr::eq(setup.memory.desc(**t), desc));
            known.map_or_else(|| desc.host().unwrap(), |(_, host)| host.clone())
        };
        let mut host: Vec<_> = setup.memory.tensors().iter().map(|t| value(&t.name)).collect();
        setup.program.run_reference(&setup.steps[0], &mut host);
        let o_at = setup.memory.tensors().iter().position(|t| t.name == "o").unwrap();
        let (d, group) = (dims.head_dim, dims.heads / dims.kv_heads);
        let [far, lists, near, q, o] = ["far", "lists", "near", "q", "o"].map(value);
        let kv = ["k_pages", "v_pages"].map(value);
        for (g, width) in widths.iter().enumerate() {
            let forest = forest(trees, far.u32(), lists.u32(), &kv, g, dims.kv_heads, d);
            let cover = forest.cover(Beam { width: *width as usize, size });
            for t in 0..2 {
                let heads = t * dims.heads + g * group..t * dims.heads + (g + 1) * group;
                let scale = 1.0 / (d as f32).sqrt();
                let of_near = |h: usize| [near.f32()[4 * h], near.f32()[4 * h + 1]];
                let query = Query {
                    q: heads.clone().flat_map(|h| &q.f32()[h * d..(h + 1) * d]).map(|x| x * scale).collect(),
                    d,
                    cap,
                    near: heads.clone().map(|h| of_near(h)[0] + of_near(h)[1].ln()).collect(),
                };
                let mut answers = Answers::default();
                let reads = eval::Far::answer(&cover, &query, &mut answers);
                assert_eq!(reads.anchors + reads.rows, answers.values.len() + reads.keys - reads.values);
                for (r, h) in heads.enumerate() {
                    let [m, l] = of_near(h).map(f64::from);
                    let scores = || answers.scores.iter().skip(r).step_by(group).map(|s| f64::from(*s));
                    let sum = l + scores().map(|s| (s - m).exp()).sum::<f64>();
                    for i in 0..d {
                        let far: f64 =
                            scores().zip(&answers.values).map(|(s, v)| (s - m).exp() * f64::from(v[i])).sum();
                        let found = (l * f64::from(o.f32()[h * d + i]) + far) / sum;
                        let expected = f64::from(host[o_at].f32()[h * d + i]);
                        assert!((found - expected).abs() < 1e-4, "{}: {found} for {expected}", setup.name);
                    }
                    looked_up += 1;
                }
            }
        }
    }
    assert!(looked_up > 20);
}

/// What the pages of a case hold, of one head. Its second sequence has the trees.
fn forest(trees: &[usize], far: &[u32], lists: &[u32], kv: &[Host; 2], g: usize, heads: usize, d: usize) -> Forest {
    let tree = |(i, &rows): (usize, &usize)| {
        let entry = &far[4 * (2 + i)..][..4];
        let items = |list: u32, n: usize| {
            [0, 1].map(|part: usize| {
                let item = |i: usize| {
                    let page = lists[list as usize + i / PAGE] as usize;
                    let at = ((page * heads + g) * PAGE + i % PAGE) * d;
                    (at..at + d).map(|i| kv[part].kv(i)).collect::<Vec<_>>()
                };
                (0..n).flat_map(item).collect::<Vec<_>>()
            })
        };
        Tree { rows, of_rows: items(entry[1], rows), of_nodes: items(entry[2], 2 * rows / Cover::LEAF) }
    };
    Forest { d, trees: trees.iter().enumerate().map(tree).collect() }
}

#[test]
fn widths_go_to_heads_that_gain_most_within_the_budget() {
    let costs = [10, 20, 40];
    let errors = vec![vec![8.0, 1.0, 0.5], vec![2.0, 1.9, 0.1], vec![1.0, 0.9, 0.8]];
    // Nothing is left beyond the least.
    assert_eq!(choose(&errors, &costs, 10), [0, 0, 0]);
    assert_eq!(choose(&errors, &costs, 9), [0, 0, 0]);
    assert_eq!(choose(&errors, &costs, 14), [1, 0, 0]);
    // The second gains little by one step and much by two.
    assert_eq!(choose(&errors, &costs, 24), [1, 2, 0]);
    assert_eq!(choose(&errors, &costs, 40), [2, 2, 2]);
    let mut last = f64::INFINITY;
    for budget in 10..=40 {
        let chosen = choose(&errors, &costs, budget);
        assert!(chosen.iter().map(|c| costs[*c]).sum::<usize>() <= budget * errors.len());
        let error = chosen.iter().zip(&errors).map(|(c, e)| e[*c]).sum::<f64>();
        assert!(error <= last + 1.0, "{budget}: {error} after {last}");
        last = last.min(error);
    }
    // Noise never makes a head wider for nothing, nor NaN.
    assert_eq!(choose(&[vec![1.0, 2.0, 1.0], vec![f64::NAN; 3]], &costs, 40), [0, 0]);
}

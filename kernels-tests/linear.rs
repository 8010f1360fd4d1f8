use farpast::format::Q6_K;
use farpast::memory::{Maths, Tile};
use farpast::program::Mode;

use crate::cases::{Case, TILES_OF_LINEARS, Values, of};
use crate::harness::{catches, catches_any_fault, catches_by_coopmat, check, check_coopmat, gpu, result_bits, runs};

#[test]
fn equals_its_reference_in_every_format() {
    check("linear");
}

#[test]
fn equals_its_reference_by_coopmat() {
    check_coopmat("linear");
}

#[test]
fn decode_and_prefill_give_the_same_bits_in_any_tile() {
    for case in of("linear") {
        let Case::Linear { tile, format, n, k, t, add, outputs, parts, values, .. } = case else { unreachable!() };
        // Every number of tokens, and a K that is no whole group where the format has such.
        if (t.len() != 17 && k != 33) || tile.maths != Maths::F32 {
            continue;
        }
        let cases = TILES_OF_LINEARS.into_iter().flat_map(|tile| {
            let case = |mode| Case::Linear { mode, tile, format, n, k, t, add, outputs, parts, values };
            [case(Mode::Decode), case(Mode::Prefill)]
        });
        let bits = |case: Case| {
            let cols = n.next_multiple_of(4);
            let bits = result_bits(&case.setup()).into_iter().enumerate();
            bits.filter(|(i, _)| i % cols < n).map(|(_, bits)| bits).collect::<Vec<_>>()
        };
        let mut all = cases.filter(runs).map(|case| (case, bits(case)));
        let (_, first) = all.next().unwrap();
        for (case, bits) in all {
            assert!(first == bits, "{case:?} differs");
        }
    }
}

/// Of each kind of maths that rounds x.
#[test]
fn tiles_of_one_token_and_of_four_round_alike() {
    for maths in [Maths::F16, Maths::Dot8] {
        let tiles = TILES_OF_LINEARS.map(|tile| Tile { maths, ..tile });
        let cases = tiles.into_iter().flat_map(|tile| {
            let case = |mode| Case::Linear {
                mode,
                tile,
                format: &Q6_K,
                n: 67,
                k: 256,
                t: &[5],
                add: false,
                outputs: false,
                parts: 1,
                values: Values::Unit,
            };
            [case(Mode::Decode), case(Mode::Prefill)]
        });
        let bits: Vec<_> = cases.filter(runs).map(|case| result_bits(&case.setup())).collect();
        assert!(bits.iter().all(|other| *other == bits[0]), "{maths:?}");
    }
}

#[test]
fn planted_faults_are_caught() {
    let faults = [
        ("step.n_outputs", "step.n_tokens"),
        ("step.n_tokens", "(step.n_tokens - 1u)"),
        ("ADD == 1u", "ADD == 0u"),
        ("unpack4xI8", "unpack4xU8"),
        ("min(t + 2u, last)", "min(t + 1u, last)"),
        ("most / 127.0", "most / 128.0"),
        ("fma(dm.y * x_scale", "fma(dm.x * x_scale"),
        ("w8.y, x_high", "w8.y, x_low"),
        ("less(both.x, 32u)", "less(both.x, 31u)"),
    ];
    let of_f16 = [("x[3], fma(NumPerToken(w4.z)", "x[2], fma(NumPerToken(w4.z)")];
    let with_f16 = gpu().caps().f16;
    catches("linear", &[&faults[..], if with_f16 { &of_f16 } else { &[] }].concat());
    catches_any_fault("linear");
}

#[test]
fn planted_faults_by_coopmat_are_caught() {
    catches_by_coopmat(
        "linear",
        &[
            ("coopLoadT<Left>", "coopLoad<Left>"),
            ("coopLoad<Right>", "coopLoadT<Right>"),
            ("coopMultiplyAdd(w, x[c], sums[s * COLUMNS + c])", "coopMultiplyAdd(w, x[c], sums[0u])"),
            ("k += SIZE", "k += 2u * SIZE"),
            ("row_base(min(row0 + r + index, N - 1u))", "row_base(min(r + index, N - 1u))"),
            ("min(t + token, last)", "min(token, last)"),
            ("vec4(dm.y)))", "vec4(0.0)))"),
            ("results[i * TILE + row]", "results[i * TILE + row / 2u]"),
            ("lane.index / (LANES / TURNS)", "0u"),
        ],
    );
}

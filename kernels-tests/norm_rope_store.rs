use farpast::kernels::Pairs;
use farpast::memory::Element;

use crate::cases::{Case, Listed, Sequence};
use crate::harness::{catches, catches_any_fault, check, run};

#[test]
fn equals_its_reference_on_ragged_batches() {
    check("norm_rope_store");
}

#[test]
fn f16_values_beyond_its_range_are_clamped() {
    let dims = farpast::kernels::AttentionDims { heads: 6, kv_heads: 2, head_dim: 8 };
    let sequences = &[Sequence(0, 40, Listed::All)];
    let setup =
        Case::NormRopeStore { dims, turning: 8, pairs: Pairs::Halves, kv: Element::F16, sequences, scale: 1e5 }.setup();
    let v_pages = setup.program.dispatches[0].written().last().unwrap();
    let farpast::memory::Host::F16(found) = run(&setup, &[v_pages]).remove(0) else { unreachable!() };
    let clamped = found.iter().filter(|x| x.to_f32().abs() == 65504.0).count();
    let written = found.iter().filter(|x| !x.is_nan()).count();
    assert_eq!(written, 40 * 2 * 8);
    // Of values spread evenly up to 1e5 a third is beyond 65504.
    assert!((written / 5..written / 2).contains(&clamped), "{clamped} of {written} are clamped");
    assert!(found.iter().all(|x| !x.is_infinite()));
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "norm_rope_store",
        &[
            ("tokens[t].y", "tokens[t].x"),
            ("kv_row(t, (head - H) % G)", "kv_row(t, 0u)"),
            ("t * G + g", "t + g"),
            ("slot % PAGE", "(slot + 1u) % PAGE"),
            ("x.x * turn.x - x.y * turn.y", "x.x * turn.x + x.y * turn.y"),
            ("x.z * turn.w + x.w * turn.z", "x.z * turn.z + x.w * turn.w"),
            ("head < H + G {\n        k_pages", "head <= H + G {\n        k_pages"),
            ("head < H + G && i", "head <= H + G && i"),
            ("gains[gain + dims.x] * v[0] * scale", "v[0] * scale"),
            ("head >= H", "head > H"),
            ("sum / f32(n) + eps", "sum / f32(n + 1u) + eps"),
            ("i < R4 / 2u", "i <= R4 / 2u"),
            ("piece(i), turns", "piece(i), true"),
            ("tokens[t].y * R4", "tokens[t].y * D4"),
            ("x[0] * sines + x[1] * cosines", "x[0] * sines - x[1] * cosines"),
            ("vec4(turn[0].xz, turn[1].xz)", "vec4(turn[0].xz, turn[0].xz)"),
            ("vec2(i, i + R4 / 2u)", "vec2(i, i + D4 / 2u)"),
            ("clamp(x, vec4(-65504.0), vec4(65504.0))", "clamp(x, vec4(-60000.0), vec4(60000.0))"),
        ],
    );
    catches_any_fault("norm_rope_store");
}

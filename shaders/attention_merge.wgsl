// o[t, h] = sum_i exp(m_i - m) o_i / sum_i exp(m_i - m) l_i, m = max_i m_i, over the parts i of attention_decode, in order.
// One invocation for each (4 dims, h, b).
override D4: u32;  // D / 4
override H: u32;
override RUN: u32;   // entries of a page list in one part
override RUNS: u32;  // parts of a sequence and head, at most

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> sequences: array<vec4<u32>>;  // [B]: first list entry, entries, first token, tokens
@group(0) @binding(2) var<storage, read> parts: array<vec4<f32>>;      // [B, RUNS, H, D4 + 1]: o, then (m, l, 0, 0)
@group(0) @binding(3) var<storage, read_write> o: array<vec4<f32>>;    // [T, H, D4]
@group(0) @binding(4) var<storage, read_write> near: array<vec4<f32>>; // [T, H]: m, l

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x % D4;
    let h = id.x / D4;
    let b = id.y;
    if h >= H || b >= step.n_sequences { return; }
    let sequence = sequences[b];
    var out = vec4(0.0);
    var top = -3.4028234e38;
    var sum = 0.0;
    for (var run = 0u; run * RUN < sequence.y; run += 1u) {
        let at = ((b * RUNS + run) * H + h) * (D4 + 1u);
        let part = parts[at + D4];
        // A part whose keys are all unseen has no weight.
        if part.y == 0.0 { continue; }
        let new_top = max(top, part.x);
        let old_scale = exp(top - new_top);
        let part_scale = exp(part.x - new_top);
        top = new_top;
        sum = fma(sum, old_scale, part.y * part_scale);
        out = fma(out, vec4(old_scale), parts[at + i] * part_scale);
    }
    let query = sequence.z * H + h;
    o[query * D4 + i] = select(vec4(0.0), out / sum, sum != 0.0);
    if i == 0u { near[query] = vec4(top, sum, 0.0, 0.0); }
}

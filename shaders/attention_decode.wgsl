// The (o, m, l) parts of attention of one token of each sequence, not normalised: o = sum_s exp(score_s - m) v[s],
// m = the largest score, l = sum_s exp(score_s - m), over the keys of a run of pages of the sequence's list.
// One workgroup for each (HEADS query heads, run, b), which share its loads of keys and values. Neighbours read the same pages.
override RUNS: u32;  // parts of a sequence and head, at most

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;       // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> sequences: array<vec4<u32>>;    // [B]: first list entry, entries, first token, tokens
@group(0) @binding(3) var<storage, read> pages: array<vec2<u32>>;        // page, its first position
@group(0) @binding(4) var<storage, read> queries: array<vec4<f32>>;      // [T, H, D4]
@group(0) @binding(5) var<storage, read> k_pages: array<Kv>;             // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read> v_pages: array<Kv>;             // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;  // [B, RUNS, H, D4 + 1]: o, then (m, l, 0, 0)

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let run = group.y;
    let head = group.x * HEADS;
    let b = group.z;
    if b >= step.n_sequences { return; }
    let sequence = sequences[b];
    if run * RUN >= sequence.y { return; }
    let first = sequence.x + run * RUN;
    var part = run_part(sequence.z, sequence.z, head, first, min(first + RUN, sequence.x + sequence.y), lane);
    for (var i = 0u; i < OWN; i += 1u) {
        let r = query_of(lane, i);
        if r >= HEADS { break; }
        let at = ((b * RUNS + run) * H + head + r) * (D4 + 1u);
        for (var c = 0u; c < CHUNKS; c += 1u) {
            let dims = dims_of(lane, c);
            if dims < D4 { parts[at + dims] = part.o[i][c]; }
            if dims == 0u { parts[at + D4] = vec4(part.top[i], part.sum[i], 0.0, 0.0); }
        }
    }
}

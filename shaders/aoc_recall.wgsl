// q[t, h] = the query of head h at the position of token t that aoc_lookup kept for trials.
// One invocation for each (4 dims, h, t).
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override PAGE: u32;
override WIDTHS: u32;  // widths of a sequence, before the pages of kept queries

const R = H / G;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;      // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> far: array<vec4<u32>>;         // [B]: first tree, trees, starting size, first of its lists
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read> k_pages: array<Kv>;            // [pages, G, PAGE, D4]
@group(0) @binding(5) var<storage, read> v_pages: array<Kv>;            // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read_write> q: array<vec4<f32>>;     // [T, H, D4]

@compute @workgroup_size(16, 4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let d = id.x;
    let h = id.y;
    let t = id.z;
    if d >= D4 || h >= H || t >= step.n_tokens { return; }
    let token = tokens[t];
    let item = OF_TRIALS + turn_of(token.y) * R + h % R;
    let page = lists[far[token.w].w + WIDTHS + item / (2u * PAGE)];
    let row = row_at(page, h / R, item);
    var x: vec4<f32>;
    if item / PAGE % 2u == 1u { x = value_of(row, d); } else { x = key_of(row, d); }
    q[(t * H + h) * D4 + d] = x;
}

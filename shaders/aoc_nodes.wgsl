// A tree's nodes are numbered as in a heap: 1 is the root, those of depth j are 2^j .. 2^(j + 1), the children of i are 2i and 2i + 1;
// row i lies in slot i of the rows' pages, node i in slot i of the nodes' pages. Here: the anchors of one depth, nodes SEGMENT .. 2 SEGMENT of its heap (SEGMENT is the step's segment): mean key and mean
// value of the LEAF rows of a leaf, or of the two children of any other node, which stand for as many rows each.
// One invocation for each (node, piece of 64 dims of k or of v, g).
override D4: u32;
override G: u32;
override PAGE: u32;
override LEAF: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> pages: array<u32>;         // pages of the tree's rows, then of its nodes
@group(0) @binding(2) var<storage, read_write> k_pages: array<Kv>;   // [pages, G, PAGE, D4]
@group(0) @binding(3) var<storage, read_write> v_pages: array<Kv>;   // [pages, G, PAGE, D4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let piece = id.y % PIECES;
    let is_value = id.y >= PIECES;
    let g = id.z;
    if i >= step.segment { return; }
    let nodes = step.rows / PAGE;
    let is_leaf = step.segment * LEAF == step.rows;
    let node = step.segment + i;
    let children = select(2u, LEAF, is_leaf);
    let first = select(2u * node, LEAF * i, is_leaf);
    var mean: array<vec4<f32>, 16>;
    for (var d = 0u; d < 16u; d += 1u) { mean[d] = vec4(0.0); }
    for (var c = first; c < first + children; c += 1u) {
        let row = row_at(pages[select(nodes, 0u, is_leaf) + c / PAGE], g, c);
        for (var d = step.zero; d < min(16u, D4 - 16u * piece); d += 1u) {
            let dims = 16u * piece + d;
            if is_value { mean[d] += value_of(row, dims); } else { mean[d] += key_of(row, dims); }
        }
    }
    for (var d = 0u; d < 16u; d += 1u) { mean[d] /= f32(children); }
    put(is_value, row_at(pages[nodes + node / PAGE], g, node), piece, &mean);
}

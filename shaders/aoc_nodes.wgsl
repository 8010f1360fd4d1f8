// A tree's nodes are numbered as in a heap: 1 is the root, those of depth j are 2^j .. 2^(j + 1), the children of i are 2i and 2i + 1;
// row i lies in slot i of the rows' pages, node i in slot i of the nodes' pages. Here: the anchors of one depth, nodes SEGMENT .. 2 SEGMENT of its heap (SEGMENT is the step's segment): mean key and mean
// value of the LEAF rows of a leaf, or of the two children of any other node, which stand for as many rows each.
// One invocation for each (4 dims, node, g).
override D4: u32;
override G: u32;
override PAGE: u32;
override LEAF: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> pages: array<u32>;         // pages of the tree's rows, then of its nodes
@group(0) @binding(2) var<storage, read_write> k_pages: array<Kv4>;  // [pages, G, PAGE, D4]
@group(0) @binding(3) var<storage, read_write> v_pages: array<Kv4>;  // [pages, G, PAGE, D4]

@compute @workgroup_size(16, 4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let d = id.x;
    let i = id.y;
    let g = id.z;
    if d >= D4 || i >= step.segment { return; }
    let nodes = step.rows / PAGE;
    let is_leaf = step.segment * LEAF == step.rows;
    let node = step.segment + i;
    let children = select(2u, LEAF, is_leaf);
    let first = select(2u * node, LEAF * i, is_leaf);
    var k = vec4(0.0);
    var v = vec4(0.0);
    for (var c = first; c < first + children; c += 1u) {
        let at = slot_base(pages[select(nodes, 0u, is_leaf) + c / PAGE], g, c) + d;
        k += kv_unpack(k_pages[at]);
        v += kv_unpack(v_pages[at]);
    }
    let at = slot_base(pages[nodes + node / PAGE], g, node) + d;
    k_pages[at] = kv_pack(k / f32(children));
    v_pages[at] = kv_pack(v / f32(children));
}

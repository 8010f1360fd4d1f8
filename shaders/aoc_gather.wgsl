// Copies keys and values of the rows of a tree, in its order, to pages of its own: row i of head g from slot source[order[g, i]].
// One invocation for each (unit of a row, row i, g).
override D4: u32;
override G: u32;
override PAGE: u32;
override CAPACITY: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> source: array<u32>;              // [rows]: page slot of row i
@group(0) @binding(2) var<storage, read> order: array<u32>;               // [G, CAPACITY]
@group(0) @binding(3) var<storage, read> pages: array<u32>;              // pages of the tree's rows, then of its nodes
@group(0) @binding(4) var<storage, read_write> k_pages: array<Kv>;        // [pages, G, PAGE, D4]
@group(0) @binding(5) var<storage, read_write> v_pages: array<Kv>;        // [pages, G, PAGE, D4]

@compute @workgroup_size(16, 4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let unit = id.x;
    let i = id.y;
    let g = id.z;
    if unit >= UNITS || i >= step.rows { return; }
    let slot = source[order[g * CAPACITY + i]];
    let from_at = unit_at(row_at(slot / PAGE, g, slot), unit);
    let to_at = unit_at(row_at(pages[i / PAGE], g, i), unit);
    k_pages[to_at] = k_pages[from_at];
    v_pages[to_at] = v_pages[from_at];
}

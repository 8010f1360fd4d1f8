// points[g, i, p] = k[i] . query[p] * SCALE: the coordinates of the rows to be covered, in which distance is how differently recent
// queries score two rows. Queries lie where aoc_lookup left them: in slots of pages, 16 in the half of the keys, 16 in that of the values.
// The rows' first order is as they come. One invocation for each (row i, 4 queries, g).
override D4: u32;  // D / 4
override G: u32;
override PAGE: u32;
override POINTS: u32;   // queries
override CAPACITY: u32; // rows of points for a head
override SCALE: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> source: array<u32>;       // [rows]: page slot of row i
@group(0) @binding(2) var<storage, read> queries: array<u32>;      // [POINTS / (2 PAGE)]: their pages
@group(0) @binding(3) var<storage, read> k_pages: array<Kv>;       // [pages, G, PAGE, D4]
@group(0) @binding(4) var<storage, read> v_pages: array<Kv>;       // [pages, G, PAGE, D4]
@group(0) @binding(5) var<storage, read_write> points: array<vec4<f32>>;  // [G, CAPACITY, POINTS / 4]
@group(0) @binding(6) var<storage, read_write> order: array<u32>;         // [G, CAPACITY]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let p = 4u * id.y;
    let g = id.z;
    if i >= step.rows { return; }
    let page = queries[p / (2u * PAGE)];
    let in_values = p / PAGE % 2u == 1u;
    let query = row_at(page, g, p);
    let row = row_at(source[i] / PAGE, g, source[i]);
    var dots = vec4(0.0);
    for (var d = step.zero; d < D4; d += 1u) {
        let k = key_of(row, d);
        var q: mat4x4<f32>;
        for (var j = 0u; j < 4u; j += 1u) {
            if in_values { q[j] = value_of(query + j, d); } else { q[j] = key_of(query + j, d); }
        }
        dots += k * q;
    }
    if id.y == 0u { order[g * CAPACITY + i] = i; }
    points[(g * CAPACITY + i) * (POINTS / 4u) + id.y] = dots * SCALE;
}

// The products of a linear by cooperative matrices. Of each group of 32 k, a workgroup lays the weights of TILE rows, decoded whole,
// and x of TOKENS tokens in workgroup memory; a subgroup multiplies its share of the rows with all tokens. Invocations find
// the sums in workgroup memory. The included files say which matrices the device has. A workgroup is one subgroup of the largest size
// that the device has, or several smaller ones.
override TOKENS: u32;  // of a workgroup
override PITCH: u32;   // Num from one staged row to the next

const TILE = 64u;
const SLABS = TILE / SIZE;
const COLUMNS = TOKENS / SIZE;
// Invocations that have the same rows and take their tokens in turn.
const TURNS = LANES * ROWS / TILE;

// Row of the tile.
alias PerToken = u32;

var<workgroup> weights: array<Num, TILE * PITCH>;
var<workgroup> inputs: array<Num, TOKENS * PITCH>;
var<workgroup> results: array<f32, TOKENS * TILE>;

// Where the products of each row n of the invocation are: sum_k w[n, k] * x[t + i, k], i < TOKENS. Rows beyond N repeat the
// last, and so do tokens. More subgroups than slabs repeat the last.
fn products(group_x: u32, t: u32, last: u32, lane: Lane) -> array<PerToken, ROWS> {
    let share = max(SLABS / lane.subgroups, 1u);
    let first = min(lane.subgroup * share, SLABS - share) * SIZE;
    var sums: array<Sums, SLABS * COLUMNS>;
    for (var g = step.zero; g < GROUPS; g += 1u) {
        lay_weights(group_x * TILE, g, lane.index);
        lay_inputs(t, last, g, lane.index);
        workgroupBarrier();
        for (var k = 0u; k < 32u; k += SIZE) {
            var x: array<Right, COLUMNS>;
            for (var c = 0u; c < COLUMNS; c += 1u) {
                x[c] = coopLoad<Right>(&inputs[c * SIZE * PITCH + k], PITCH);
            }
            for (var s = 0u; s < SLABS; s += 1u) {
                if s >= share { break; }
                let w = coopLoadT<Left>(&weights[(first + s * SIZE) * PITCH + k], PITCH);
                for (var c = 0u; c < COLUMNS; c += 1u) {
                    sums[s * COLUMNS + c] = coopMultiplyAdd(w, x[c], sums[s * COLUMNS + c]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var s = 0u; s < SLABS; s += 1u) {
        if s >= share { break; }
        for (var c = 0u; c < COLUMNS; c += 1u) {
            coopStore(sums[s * COLUMNS + c], &results[c * SIZE * TILE + first + s * SIZE], TILE);
        }
    }
    workgroupBarrier();
    var rows: array<PerToken, ROWS>;
    for (var r = 0u; r < ROWS; r += 1u) { rows[r] = row_of(0u, lane, r); }
    return rows;
}

// The first token of an invocation.
fn turn(lane: Lane) -> u32 {
    return lane.index / (LANES / TURNS);
}

fn of_token(row: PerToken, i: u32) -> f32 {
    return results[i * TILE + row];
}

// The weights of group g, of the rows from row0 on.
fn lay_weights(row0: u32, g: u32, index: u32) {
    for (var r = 0u; r < TILE; r += LANES) {
        let base = row_base(min(row0 + r + index, N - 1u));
        let at = (r + index) * PITCH;
        let q = group(base, g);
        let dm = scale(base, g);
        for (var j = 0u; j < 4u; j += 1u) {
            let q8 = quants(q, j);
            lay_weights_4(at + 4u * j, narrow(fma(vec4(dm.x), q8[0], vec4(dm.y))));
            lay_weights_4(at + 16u + 4u * j, narrow(fma(vec4(dm.x), q8[1], vec4(dm.y))));
        }
    }
}

fn lay_weights_4(at: u32, w: vec4<Num>) {
    weights[at] = w.x;
    weights[at + 1u] = w.y;
    weights[at + 2u] = w.z;
    weights[at + 3u] = w.w;
}

// x of group g, of the tokens from t on.
fn lay_inputs(t: u32, last: u32, g: u32, index: u32) {
    for (var i = 0u; i < TOKENS * 8u; i += LANES) {
        let token = (i + index) / 8u;
        let k4 = (i + index) % 8u;
        let x4 = narrow(x_at(min(t + token, last), 8u * g + k4));
        let at = token * PITCH + 4u * k4;
        inputs[at] = x4.x;
        inputs[at + 1u] = x4.y;
        inputs[at + 2u] = x4.z;
        inputs[at + 3u] = x4.w;
    }
}

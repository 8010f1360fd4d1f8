//! Steps run piece by piece: the host sees what attention of each layer reads, and may answer in its stead.

use super::{Device, Engine};
use crate::error::{Error, Result};
use crate::gpu::Prepared;
use crate::kernel::Step;
use crate::kernels::Scores;
use crate::kv::{GONE, PAGE, PageTable};
use crate::memory::Tensor;
use crate::program::{Dispatch, Mode, Program};
use crate::session::Session;

/// The prefill program of an engine in pieces, which end where the host may step in.
pub struct Replay<'a> {
    engine: &'a mut Engine,
    pieces: Vec<Piece>,
}

/// What attention of one layer reads for the tokens of a step, without what is in pages before them.
#[derive(Debug)]
pub struct Attended {
    /// Which layer.
    pub layer: usize,
    /// Position of the first token.
    pub first: usize,
    /// `[T, H, D]`: queries.
    pub q: Vec<f32>,
    /// `[T, G, D]`: keys, as the pages have them.
    pub k: Vec<f32>,
    /// `[T, G, D]`: values, as the pages have them.
    pub v: Vec<f32>,
}

struct Piece {
    what: What,
    program: Program,
    /// On a device.
    prepared: Option<Prepared>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// What all tokens of a step need.
    Tokens,
    /// Attention of a layer.
    Attention(Layer),
    /// What the outputs need.
    Outputs,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    index: usize,
    scores: Scores,
    q: Tensor,
    kv: [Tensor; 2],
    o: Tensor,
}

impl<'a> Replay<'a> {
    /// Of an engine's model.
    pub fn new(engine: &'a mut Engine) -> Result<Self> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut layers = 0;
        for d in &engine.programs[Mode::Prefill].dispatches {
            let what = match pieces.last().map(|piece| piece.what) {
                _ if ["penalize", "sample", "logprobs"].contains(&d.kernel.name) => continue,
                _ if d.kernel.name == "attention_prefill" => {
                    layers += 1;
                    What::Attention(Layer::of(d, layers - 1))
                }
                Some(What::Outputs) => What::Outputs,
                _ if d.tensors.contains(&engine.io.outputs) => What::Outputs,
                _ => What::Tokens,
            };
            match pieces.last_mut() {
                Some(last) if std::mem::discriminant(&last.what) == std::mem::discriminant(&what) => {
                    last.program.dispatches.push(d.clone());
                }
                _ => pieces.push(Piece { what, program: Program { dispatches: vec![d.clone()] }, prepared: None }),
            }
        }
        if let Device::Gpu(on) = &engine.device {
            let programs: Vec<_> = pieces.iter().map(|piece| &piece.program).collect();
            let prepared = on.gpu.prepare(&on.buffers, &programs)?;
            for (piece, prepared) in pieces.iter_mut().zip(prepared) {
                piece.prepared = Some(prepared);
            }
        }
        Ok(Self { engine, pieces })
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut Engine {
        self.engine
    }

    /// How each layer scores its keys.
    pub fn layers(&self) -> Vec<Scores> {
        self.attention().map(|layer| layer.scores).collect()
    }

    /// Keys and values that a layer has of positions `first..end` of `session`: `[n, G, D]` each.
    pub fn kept(&self, session: &Session, layer: usize, first: usize, end: usize) -> Result<[Vec<f32>; 2]> {
        let layer = self.attention().nth(layer);
        let layer = layer.ok_or_else(|| Error::request("layer", "one of the model's", "another"))?;
        let [k, v] = layer.kv.map(|t| self.engine.stored(&session.table, t, first, end));
        Ok([k?, v?])
    }

    fn attention(&self) -> impl Iterator<Item = Layer> {
        self.pieces.iter().filter_map(|piece| match piece.what {
            What::Attention(layer) => Some(layer),
            _ => None,
        })
    }

    /// Computes the pending tokens of `session`, in as many steps as it takes. Calls `attend` with each layer of each step: its
    /// answer, `[T, H, D]`, is that layer's; where it has none the model's own attention answers. Calls `row` with each position from `from` on and its
    /// logits.
    pub fn run(
        &mut self,
        session: &mut Session,
        from: usize,
        mut attend: impl FnMut(&Attended) -> Result<Option<Vec<f32>>>,
        mut row: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        session.reopen();
        let Self { engine, pieces } = self;
        while !session.pending().is_empty() {
            let (first, n) = (session.table.len(), session.pending().len().min(engine.memory.capacity.tokens));
            engine.attempt(&mut [session], |engine, sessions| {
                let inputs = engine.inputs(sessions, &[n], &[0], false)?;
                engine.write(&inputs)?;
                let (step, table) = (inputs.step(), &sessions[0].table);
                for piece in pieces.iter_mut() {
                    match piece.what {
                        What::Tokens => engine.run_piece(piece, &step)?,
                        What::Attention(layer) => {
                            let attended = engine.attended(layer, table, first, n)?;
                            match attend(&attended)? {
                                Some(o) => engine.device.write(layer.o, bytemuck::cast_slice(&o))?,
                                None => engine.run_piece(piece, &step)?,
                            }
                        }
                        What::Outputs => {
                            let wanted: Vec<u32> = (from.max(first)..first + n).map(|p| (p - first) as u32).collect();
                            for wanted in wanted.chunks(engine.memory.capacity.outputs) {
                                engine.device.write(engine.io.outputs, wanted)?;
                                engine.run_piece(piece, &Step { n_outputs: wanted.len() as u32, ..step })?;
                                let rows = engine.last_logits(wanted.len())?;
                                wanted.iter().zip(rows).for_each(|(i, logits)| row(first + *i as usize, &logits));
                            }
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Layer {
    fn of(d: &Dispatch, index: usize) -> Self {
        let named = |name| d.tensor(name).expect("a binding of attention");
        let [scale, cap] = ["SCALE", "CAP"].map(|name| d.spec.get_f32(name) as f32);
        let scores = Scores { scale, window: d.spec.get_u32("WINDOW"), cap };
        Self { index, scores, q: named("queries"), kv: ["k_pages", "v_pages"].map(named), o: named("o") }
    }
}

impl Engine {
    fn run_piece(&mut self, piece: &mut Piece, step: &Step) -> Result<()> {
        match (&mut self.device, &mut piece.prepared) {
            (Device::Gpu(on), Some(prepared)) => on.gpu.run(&on.buffers, prepared, step),
            (Device::Cpu { host }, None) => {
                piece.program.run_reference(step, host);
                Ok(())
            }
            _ => unreachable!("prepared on a device only"),
        }
    }

    fn attended(&self, layer: Layer, table: &PageTable, first: usize, n: usize) -> Result<Attended> {
        let a = self.config.attention;
        let q = self.read(layer.q, 0, n * a.heads * a.head_dim)?;
        let [k, v] = layer.kv.map(|t| self.stored(table, t, first, first + n));
        Ok(Attended { layer: layer.index, first, q: q.into_iter().map(f32::from_bits).collect(), k: k?, v: v? })
    }

    /// Rows of positions `first..end` in the pages `t`: `[n, G, D]`.
    fn stored(&self, table: &PageTable, t: Tensor, first: usize, end: usize) -> Result<Vec<f32>> {
        let (heads, d) = (self.config.attention.kv_heads, self.config.attention.head_dim);
        let pages = &table.pages()[first / PAGE..end.div_ceil(PAGE)];
        if pages.contains(&GONE) {
            return Err(Error::request("positions", "those of a session that keeps all of its past", "others"));
        }
        let Some((least, most)) = pages.iter().min().zip(pages.iter().max()) else { return Ok(Vec::new()) };
        // Pages of one session lie together in all but odd cases.
        let elements = self.memory.desc(t).host_of(&self.read_pages(t, *least..*most + 1)?);
        let (base, page) = (*least as usize, heads * PAGE * d);
        let mut rows = vec![0.0; (end - first) * heads * d];
        for (position, to) in (first..end).zip(rows.chunks_exact_mut(heads * d)) {
            let slot = table.slot(position) as usize;
            for (g, to) in to.chunks_exact_mut(d).enumerate() {
                elements.kv_row((slot / PAGE - base) * page + (g * PAGE + slot % PAGE) * d, to);
            }
        }
        Ok(rows)
    }
}

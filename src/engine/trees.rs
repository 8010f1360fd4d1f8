//! Building trees of anchors between steps: of a chunk, or of trees that become one, layer by layer, as much for each step as does
//! not hold it up.

use super::{Device, Engine, OnGpu};
use crate::attention::aoc::{self, Building, Unit};
use crate::error::Result;
use crate::kernel::Step;
use crate::kernels::{Cover, CoverTensors, FarInputs};
use crate::memory::{Memory, stride};
use crate::models::Config;
use crate::program::{Mode, Program, Recorder};
use crate::session::Session;

/// What building may compute for each step: this part of what the step computes.
const SHARE: u64 = 8;

/// Tokens of a step in which widths are tried.
const MEASURED: usize = 16;

/// Tokens after which they are chosen.
const ENOUGH: usize = 48;

/// Programs of each layer: points, gather, nodes. Before them all is the split, which knows no layer.
const OF_LAYER: usize = 3;

/// The programs that build trees for the layers that `forward` looks them up in.
pub(super) fn programs(
    config: &Config,
    (cover, far): (Cover, FarInputs),
    tensors: CoverTensors,
    memory: &Memory,
    forward: &Program,
) -> Vec<Program> {
    let d = config.attention;
    let record = |record: &dyn Fn(&mut Recorder)| Program::record(memory, Mode::Prefill, record);
    let lookups = forward.dispatches.iter().filter(|d| d.kernel.name == "aoc_lookup");
    let of_layers = lookups.enumerate().flat_map(|(layer, lookup)| {
        let kv = ["k_pages", "v_pages"].map(|name| lookup.tensor(name).expect("a lookup reads pages"));
        let scale = lookup.spec.get_f32("SCALE") as f32;
        [
            record(&|r| {
                r.aoc_points(d, cover, scale, tensors, kv);
                r.aoc_rank(d.kv_heads, cover, far.layer(layer), tensors);
            }),
            record(&|r| r.aoc_gather(d, cover, tensors, kv)),
            record(&|r| r.aoc_nodes(d, tensors, kv)),
        ]
    });
    std::iter::once(record(&|r| r.aoc_split(d.kv_heads, cover, tensors))).chain(of_layers).collect()
}

impl Engine {
    /// Builds all trees of `session` that are due, instead of some of them with each of the next steps.
    pub fn graduate(&mut self, session: &mut Session) -> Result<()> {
        loop {
            let before = session.far();
            self.begin_trees(&mut [session])?;
            self.build(&mut [session], |_| u64::MAX)?;
            if session.far() == before {
                return Ok(());
            }
        }
    }

    /// Gives back what no token of `sessions` reads any more, begins trees that are due, and goes on building the first that is under
    /// way, for a step that computes `tokens`.
    pub(super) fn tidy(&mut self, sessions: &mut [&mut Session], tokens: usize) -> Result<()> {
        sessions.iter_mut().for_each(|s| s.settle());
        if self.io.trees.is_none() {
            return Ok(());
        }
        self.begin_trees(sessions)?;
        self.build(sessions, |engine| {
            let step: u64 = engine.costs(0, tokens.max(1), true).map(|cost| cost.flops).sum();
            step / SHARE
        })
    }

    /// Tokens of `s` that the next step may have: few where it is measured how widths do, as its far past is read by rows then.
    pub(super) fn most_tokens(&self, s: &Session) -> usize {
        match &s.far {
            Some(far) if far.is_due() => MEASURED,
            _ => usize::MAX,
        }
    }

    /// Whose widths are tried in a step of `counts` tokens of `sessions`. When enough was measured, they are chosen.
    pub(super) fn measures(&mut self, sessions: &mut [&mut Session], counts: &[usize]) -> Result<Option<u32>> {
        let attention = &self.io.attention;
        let (Some(trials), Some((cover, _)), Some(trees)) = (attention.trials, attention.far, self.io.trees) else {
            return Ok(None);
        };
        let mut due = sessions.iter_mut().zip(counts).filter(|(_, n)| **n > 0).filter_map(|(s, n)| {
            let far = s.far.as_mut().filter(|far| far.is_due())?;
            Some((far, *n))
        });
        let Some((far, n)) = due.next().filter(|_| counts.iter().sum::<usize>() <= 2 * MEASURED) else {
            return Ok(None);
        };
        let desc = self.memory.desc(trials.errors);
        let zeros = vec![0; desc.rows * stride(desc.cols)];
        if self.measuring != Some(far.id()) {
            self.measuring = Some(far.id());
            far.measured = 0;
            self.device.write(trials.errors, &zeros)?;
        }
        far.measured += n;
        if far.measured > ENOUGH {
            let errors = self.read(trials.errors, 0, zeros.len())?;
            let errors = errors.chunks(stride(desc.cols)).map(|sums| [0, 1, 2, 3].map(|i| f32::from_bits(sums[i])));
            let ranks = self.read(trees.ranks, 0, cover.heads)?.into_iter().map(f32::from_bits);
            far.learn(&errors.collect::<Vec<_>>(), ranks.collect());
            self.measuring = None;
            return Ok(None);
        }
        Ok(Some(far.id()))
    }

    /// Begins the trees that are due.
    fn begin_trees(&mut self, sessions: &mut [&mut Session]) -> Result<()> {
        let Some((cover, _)) = self.io.attention.far else { return Ok(()) };
        for s in sessions.iter_mut() {
            let Some(far) = &mut s.far else { continue };
            // Where there are no pages for it, that is for later.
            if let Some(next) = far.next(&s.table, cover.rows)
                && self.make_room(next.pages).is_ok()
            {
                far.begin(next, &self.pool, &s.table)?;
            }
        }
        Ok(())
    }

    /// Goes on building the first tree under way: what computes no more than `flops` says, but at least one unit of work.
    fn build(&mut self, sessions: &mut [&mut Session], flops: impl FnOnce(&Self) -> u64) -> Result<()> {
        let Some(tensors) = self.io.trees else { return Ok(()) };
        let layers = (self.trees.len() - 1) / OF_LAYER;
        let mut with_far = sessions.iter_mut().filter_map(|s| Some((s.far.as_mut()?, &mut s.table)));
        let Some((far, table)) = with_far.find_map(|(far, table)| far.building().is_some().then_some((far, table)))
        else {
            return Ok(());
        };
        let queries = far.metric().to_vec();
        let mut left = flops(self);
        while let Some(building) = far.building() {
            // Another tree has been where this one's points and order were.
            let id = building.pages()[0];
            if self.building != Some(id) {
                building.at.unit = 0;
                self.building = Some(id);
            }
            let units = aoc::units(building.rows());
            if building.at.unit == 0 {
                self.device.write(tensors.source, &building.source)?;
                self.device.write(tensors.queries, &queries)?;
                self.device.write(tensors.pages, building.pages())?;
            }
            let (program, step) = program_of(building, units[building.at.unit]);
            self.device.build(&self.trees, program, &step)?;
            let cost = self.trees[program].cost(&step, &self.memory).flops;
            building.at.unit += 1;
            if building.at.unit == units.len() {
                building.at.unit = 0;
                building.at.layer += 1;
            }
            if building.at.layer == layers {
                far.finish(table);
            }
            match left.checked_sub(cost) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        Ok(())
    }
}

/// Which program does a unit of work, and for which step.
fn program_of(building: &Building, unit: Unit) -> (usize, Step) {
    let first = 1 + OF_LAYER * building.at.layer;
    let (program, segment) = match unit {
        Unit::Points => (first, 0),
        Unit::Split(rows) => (0, rows),
        Unit::Gather => (first + 1, 0),
        Unit::Nodes(nodes) => (first + 2, nodes),
    };
    (program, Step { rows: building.rows() as u32, segment: segment as u32, ..Step::default() })
}

impl Device {
    fn build(&mut self, programs: &[Program], program: usize, step: &Step) -> Result<()> {
        match self {
            Device::Gpu(on) => {
                let OnGpu { gpu, buffers, trees, .. } = &mut **on;
                gpu.start(buffers, &trees[program], step)
            }
            Device::Cpu { host } => {
                programs[program].run_reference(step, host);
                Ok(())
            }
        }
    }
}

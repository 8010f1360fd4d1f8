//! Building trees of anchors between steps: of a chunk, or of trees that become one, layer by layer, as much for each step as does
//! not hold it up.

use super::{Device, Engine, Inputs, OnGpu};
use crate::attention::aoc::{Building, Far, Unit};
use crate::error::Result;
use crate::kernel::Step;
use crate::kernels::Scores;
use crate::kv::PageTable;
use crate::memory::{Memory, stride};
use crate::models::{Config, Io};
use crate::program::{Mode, Program, Recorder};
use crate::session::Session;

/// What building may compute for each step: this part of what the step computes.
const SHARE: u64 = 8;

/// Positions whose queries are tried at once: so few that it holds no step up.
const TRIED: usize = 16;

/// Operations that linears do in the time that a dispatch takes to begin: measured on lavapipe.
const DISPATCHED: u64 = 150_000;

/// Operations that linears do in the time in which what builds trees loads or stores a byte, which it does for every few operations.
const LOADED: u64 = 4;

/// Programs of each layer: points, rank, gather, nodes, trials. Before them all is the split, which knows no layer.
const OF_LAYER: usize = 5;

/// The programs that build trees for the layers that `forward` looks them up in, and try widths there; none where it has no such layers.
pub(super) fn programs(config: &Config, io: &Io, memory: &Memory, forward: &Program) -> Vec<Program> {
    let (Some((cover, far)), Some((tensors, trials))) = (io.attention.far, io.trees) else { return Vec::new() };
    let d = config.attention;
    let record = |record: &dyn Fn(&mut Recorder)| Program::record(memory, Mode::Prefill, record);
    let lookups = forward.dispatches.iter().filter(|d| d.kernel.name == "aoc_lookup");
    let of_layers = lookups.enumerate().flat_map(|(layer, lookup)| {
        let [q, k, v, o] = ["q", "k_pages", "v_pages", "o"].map(|name| lookup.tensor(name).expect("a lookup's tensor"));
        let [scale, cap] = ["SCALE", "CAP"].map(|name| lookup.spec.get_f32(name) as f32);
        let scores = Scores { scale, cap, window: 0 };
        [
            record(&|r| r.aoc_points(d, cover, scale, tensors, [k, v])),
            record(&|r| r.aoc_rank(d.kv_heads, cover, far.layer(layer), tensors)),
            record(&|r| r.aoc_gather(d, cover, tensors, [k, v])),
            record(&|r| r.aoc_nodes(d, tensors, [k, v])),
            record(&|r| r.aoc_trials(d, io.attention, far.layer(layer), scores, [q, k, v, o], trials)),
        ]
    });
    std::iter::once(record(&|r| r.aoc_split(d.kv_heads, cover, tensors))).chain(of_layers).collect()
}

impl Engine {
    /// Builds all trees of `session` that are due, and chooses its widths, instead of some of that with each of the next steps.
    pub fn graduate(&mut self, session: &mut Session) -> Result<()> {
        loop {
            let before = session.far();
            self.begin_trees(&mut [session])?;
            while self.go_on(&mut [session])?.is_some() {}
            if session.far() == before {
                return Ok(());
            }
        }
    }

    /// Gives back what no token of `sessions` reads any more, begins trees that are due, and goes on with what is under way, for a step
    /// that computes `tokens`: on average no more than its share, and no more than one unit of work beyond.
    pub(super) fn tidy(&mut self, sessions: &mut [&mut Session], tokens: usize) -> Result<()> {
        sessions.iter_mut().for_each(|s| s.settle());
        if self.io.trees.is_none() {
            return Ok(());
        }
        self.begin_trees(sessions)?;
        if next_work(sessions).is_none() {
            self.credit = self.credit.min(0);
            return Ok(());
        }
        let step: u64 = self.costs(0, tokens.max(1), true).map(|cost| DISPATCHED + cost.flops).sum();
        self.credit = self.credit.min(0) + (step / SHARE) as i64;
        while self.credit > 0
            && let Some(flops) = self.go_on(sessions)?
        {
            self.credit -= flops as i64;
        }
        Ok(())
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

    /// Goes on by a unit of the [next work](next_work). Returns what it takes, in operations; `None` where there is nothing to do.
    fn go_on(&mut self, sessions: &mut [&mut Session]) -> Result<Option<u64>> {
        match next_work(sessions) {
            Some((far, table)) if far.is_building() => self.build(far, table),
            Some((far, table)) => self.try_widths(far, table),
            None => Ok(None),
        }
    }

    fn build(&mut self, far: &mut Far, table: &mut PageTable) -> Result<Option<u64>> {
        let Some((tensors, _)) = self.io.trees else { return Ok(None) };
        let queries = far.metric().to_vec();
        let Some(building) = far.building() else { return Ok(None) };
        // Another tree has been where this one's points and order were.
        let id = building.pages()[0];
        if self.building != Some(id) {
            building.at.unit = 0;
            self.building = Some(id);
        }
        let units = building.units();
        if building.at.unit == 0 {
            self.device.write(tensors.source, &building.source)?;
            self.device.write(tensors.queries, &queries)?;
            self.device.write(tensors.pages, building.pages())?;
        }
        let (program, step) = program_of(building, units[building.at.unit]);
        self.device.build(&self.trees, program, &step)?;
        building.at.unit += 1;
        if building.at.unit == units.len() {
            building.at.unit = 0;
            building.at.layer += 1;
        }
        if building.at.layer == (self.trees.len() - 1) / OF_LAYER {
            far.finish(table);
        }
        Ok(Some(self.charge(program, &step, LOADED)))
    }

    /// Tries widths in one layer, with some of the kept queries; after the last layer they are chosen.
    fn try_widths(&mut self, far: &mut Far, table: &PageTable) -> Result<Option<u64>> {
        let (Some((cover, _)), Some((tensors, trials))) = (self.io.attention.far, self.io.trees) else {
            return Ok(None);
        };
        let (rows, cols) = (self.memory.desc(trials.errors).rows, stride(self.memory.desc(trials.errors).cols));
        if self.trying != Some(far.id()) || far.trial == 0 {
            self.trying = Some(far.id());
            far.trial = 0;
            self.device.write(trials.errors, &vec![0; rows * cols])?;
        }
        let parts = far.trials(table, TRIED.min(self.memory.capacity.tokens));
        let (layer, part) = (far.trial / parts.len(), far.trial % parts.len());
        let mut inputs = Inputs { cover: Some(cover), ..Inputs::default() };
        inputs.tokens = parts[part].iter().map(|position| [0, *position as u32, 0, 0]).collect();
        inputs.attend(table, Some(far), 0);
        self.write(&inputs)?;
        let (program, step) = (OF_LAYER * (1 + layer), inputs.step());
        self.device.build(&self.trees, program, &step)?;
        far.trial += 1;
        if far.trial == parts.len() * (self.trees.len() - 1) / OF_LAYER {
            let errors = self.read(trials.errors, 0, rows * cols)?;
            let errors = errors.chunks(cols).map(|sums| [0, 1, 2, 3].map(|i| f32::from_bits(sums[i])));
            let ranks = self.read(tensors.ranks, 0, cover.heads)?.into_iter().map(f32::from_bits);
            far.learn(&errors.collect::<Vec<_>>(), ranks.collect());
            self.trying = None;
        }
        // What the program costs does not know how many rows there are.
        let d = self.config.attention;
        let rows = (inputs.tokens.len() * far.rows() * d.heads * 4 * d.head_dim) as u64;
        Ok(Some(self.charge(program, &step, 0) + rows))
    }

    /// Operations of a step's linears that take as long as a unit of work in which each byte that is loaded or stored takes as long as
    /// `of_byte` of them.
    fn charge(&self, program: usize, step: &Step, of_byte: u64) -> u64 {
        let costs = self.trees[program].dispatches.iter().map(|d| d.cost(step, &self.memory));
        costs.map(|cost| DISPATCHED + cost.flops + of_byte * (cost.read + cost.written)).sum()
    }
}

/// The first tree under way, or else the first trials that are due.
fn next_work<'a>(sessions: &'a mut [&mut Session]) -> Option<(&'a mut Far, &'a mut PageTable)> {
    let first = |is_next: &dyn Fn(&Far, &PageTable) -> bool| {
        sessions.iter().position(|s| s.far.as_ref().is_some_and(|far| is_next(far, &s.table)))
    };
    let next = first(&|far, _| far.is_building()).or_else(|| first(&Far::is_due))?;
    let s = &mut *sessions[next];
    Some((s.far.as_mut()?, &mut s.table))
}

/// Which program does a unit of work, and for which step.
fn program_of(building: &Building, unit: Unit) -> (usize, Step) {
    let first = 1 + OF_LAYER * building.at.layer;
    let (program, segment) = match unit {
        Unit::Points => (first, 0),
        Unit::Split(rows) => (0, rows),
        Unit::Rank => (first + 1, 0),
        Unit::Gather => (first + 2, 0),
        Unit::Nodes(nodes) => (first + 3, nodes),
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

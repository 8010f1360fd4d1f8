//! A checkpoint made ready for a device: what it will allocate and run, before anything is there.

use sha2::{Digest, Sha256};

use super::{EngineOptions, available_memory, trees};
use crate::attention::aoc;
use crate::error::{Error, Result};
use crate::gpu::{Caps, Kind};
use crate::kernel::Count;
use crate::kernels::{AttentionDims, Cover};
use crate::kv::PAGE;
use crate::memory::{Capacity, Element, Maths, Memory, Tile};
use crate::models::{self, Config, Io, Model};
use crate::program::{Mode, PerMode, Program};
use crate::weights::Weights;

/// The tensors and programs of a model, sized by [`EngineOptions`].
pub struct Recorded {
    /// Shapes of the model.
    pub config: Config,
    /// All tensors.
    pub memory: Memory,
    /// The forward pass in every mode.
    pub programs: PerMode<Program>,
    /// Build trees of anchors: see [`trees`].
    pub(super) trees: Vec<Program>,
    pub(super) io: Io,
    /// A hash of all that keys and values are made of, but for the device's and the options' ways to round.
    pub(super) identity: [u8; 32],
}

/// Bytes on the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Weights and tables.
    pub weights: usize,
    /// KV pages.
    pub kv: usize,
    /// Activations, inputs and results of a step.
    pub activations: usize,
}

impl Plan {
    pub(super) fn of(memory: &Memory) -> Self {
        let mut plan = Plan::default();
        for t in memory.tensors() {
            *match (t.element, t.bound) {
                (Element::Weight(_), _) => &mut plan.weights,
                _ if t.name.ends_with("_pages") => &mut plan.kv,
                (_, None) if t.is_table => &mut plan.weights,
                _ => &mut plan.activations,
            } += t.bytes();
        }
        plan
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.kv + self.activations
    }
}

impl Recorded {
    /// For an adapter with `caps`, or for the references on the CPU. Whether it fits there is not asked.
    pub fn new(weights: &Weights, options: &EngineOptions, caps: Option<&Caps>) -> Result<Self> {
        Self::with(weights, options, caps, tile(caps))
    }

    /// As [`new`](Self::new), with another tile.
    pub(super) fn with(weights: &Weights, options: &EngineOptions, caps: Option<&Caps>, tile: Tile) -> Result<Self> {
        let config = Config::read(weights)?;
        let capacity = capacity(&config, options, caps);
        check(&capacity, &config, options.aoc)?;
        check_maths(options.maths, caps)?;
        let matrices = caps.and_then(|caps| caps.matrices).unwrap_or(tile.matrices);
        let tile = Tile { maths: options.maths, matrices, ..tile };
        let cover = options.aoc.then(|| cover(&config, &capacity, tile)).transpose()?;
        let (memory, io, model) = declare(weights, &config, cover, capacity, tile)?;
        let record = |mode| {
            Program::record(&memory, mode, |r| {
                model.record(&io, r);
                io.record_draw(r);
            })
        };
        let programs = PerMode(Mode::ALL.map(record));
        let trees = trees::programs(&config, &io, &memory, &programs[Mode::Prefill]);
        Ok(Self { identity: identity(weights, &config, &capacity), config, memory, programs, trees, io })
    }

    /// Bytes on the device.
    pub fn plan(&self) -> Plan {
        Plan::of(&self.memory)
    }
}

/// Refuses a model that does not fit `options.memory`, or else what memory is known of the device, or its bindings.
///
/// Declares it for contexts of a few pages only: each page more takes as much again, and so does each run of pages.
pub fn expect_fits(weights: &Weights, options: &EngineOptions, caps: Option<&Caps>) -> Result<()> {
    let config = Config::read(weights)?;
    let wanted = capacity(&config, options, caps);
    check(&wanted, &config, options.aoc)?;
    let cover = options.aoc.then(|| cover(&config, &wanted, tile(caps))).transpose()?;
    // Anchors take a page for every four.
    let unit = if options.aoc { 4 } else { 1 };
    let declared = |n: usize| {
        let pages = pool_pages(options, config.attention, n, wanted.context);
        Ok(declare(weights, &config, cover, Capacity { context: n * PAGE, pages, ..wanted }, tile(caps))?.0)
    };
    let [one, two, run] = [declared(unit)?, declared(2 * unit)?, declared(unit + AttentionDims::RUN)?];
    let sizes = one.tensors().iter().zip(two.tensors()).zip(run.tensors()).map(|((one, two), run)| {
        let [bytes, two, run] = [one, two, run].map(|t| t.bytes() as u128);
        let page = (two - bytes) / unit as u128;
        let run = (run - bytes).saturating_sub(AttentionDims::RUN as u128 * page);
        (one.name.as_str(), Size { bytes: bytes.saturating_sub((unit as u128 - 1) * page), page, run })
    });
    let of_memory = match (options.memory, caps) {
        (None, Some(caps)) if caps.kind != Kind::Software => None,
        (None, _) => available_memory(),
        (limit, _) => limit,
    };
    let of_binding = caps.map(|caps| caps.max_binding);
    let all = sizes.clone().fold(Size::default(), |all, (_, size)| all.plus(size));
    let whole = of_memory.map(|available| Limit { what: "the model", size: all, available });
    let parts = sizes.filter_map(|(what, size)| Some(Limit { what, size, available: of_binding? }));
    let limits: Vec<_> = whole.into_iter().chain(parts).collect();
    let pages = wanted.of(Count::Pages);
    let Some(limit) = limits.iter().find(|l| !l.fits(pages)) else { return Ok(()) };
    let fitting = limits.iter().map(|l| l.pages(pages)).min().filter(|pages| *pages > 0);
    Err(Error::DoesNotFit {
        device: caps.map_or("CPU interpreter".into(), |caps| caps.name.clone()),
        what: format!("{} with a context of {}", limit.what, wanted.context),
        needed: u64::try_from(limit.size.at(pages)).unwrap_or(u64::MAX),
        available: limit.available as u64,
        fitting: fitting.map(|pages| pages * PAGE),
    })
}

/// Pages of the pool where each sequence has `n` pages of positions, of contexts of `context` positions.
fn pool_pages(options: &EngineOptions, attention: AttentionDims, n: usize, context: usize) -> usize {
    match options.pages {
        0 => options.sequences.saturating_mul(sequence_pages(options.aoc, attention, n, context)),
        pages => pages,
    }
}

/// Pages of a sequence that has `n` pages of positions: with anchors, kept queries and a tree under way, of as many rows as the largest
/// of contexts of `context` positions.
fn sequence_pages(aoc: bool, attention: AttentionDims, n: usize, context: usize) -> usize {
    let with_anchors = |n: usize| n.saturating_add(n.div_ceil(4));
    match aoc {
        true => {
            let kept = Cover::kept_pages(attention.heads / attention.kv_heads);
            with_anchors(n).saturating_add(with_anchors(aoc::largest(context) / PAGE) + kept)
        }
        false => n,
    }
}

/// Bytes for a context of one page, for each further one, and for each further run of them.
#[derive(Clone, Copy, Default)]
struct Size {
    bytes: u128,
    page: u128,
    run: u128,
}

impl Size {
    fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, page: self.page + other.page, run: self.run + other.run }
    }

    /// With `pages` pages, at least one.
    fn at(&self, pages: usize) -> u128 {
        self.bytes + self.page * (pages as u128 - 1) + self.run * (AttentionDims::parts(pages) as u128 - 1)
    }
}

/// Something of which `available` bytes exist.
struct Limit<'a> {
    what: &'a str,
    size: Size,
    available: usize,
}

impl Limit<'_> {
    fn fits(&self, pages: usize) -> bool {
        self.size.at(pages) <= self.available as u128
    }

    /// Most pages that fit, up to `most`.
    fn pages(&self, most: usize) -> usize {
        let (mut fit, mut not) = (0, most + 1);
        while not - fit > 1 {
            let middle = fit + (not - fit) / 2;
            *if self.fits(middle) { &mut fit } else { &mut not } = middle;
        }
        fit
    }
}

fn capacity(config: &Config, options: &EngineOptions, caps: Option<&Caps>) -> Capacity {
    let context = if options.context == 0 { config.context } else { options.context };
    Capacity {
        tokens: options.batch,
        outputs: options.sequences.max(16).min(options.batch),
        sequences: options.sequences,
        context,
        pages: pool_pages(options, config.attention, context.div_ceil(PAGE), context),
        kv: options.kv,
        binding: caps.map_or(usize::MAX, |caps| caps.max_binding).min(options.binding),
    }
}

fn identity(weights: &Weights, config: &Config, capacity: &Capacity) -> [u8; 32] {
    // Beyond the original context angles may be others: see `models::Declare::rope`.
    let is_long = capacity.context > config.rope.original_context;
    let mut hash = Sha256::new_with_prefix(weights.fingerprint());
    hash.update(format!("{config:?} {is_long}"));
    hash.finalize().into()
}

/// How linears are recorded for an adapter with `caps`, or for the references on the CPU.
pub fn tile(caps: Option<&Caps>) -> Tile {
    match caps {
        Some(caps) if caps.kind != Kind::Software => Tile::HARDWARE,
        Some(caps) if caps.subgroup < 8 => Tile::SOFTWARE,
        _ => Tile::SUBGROUPS,
    }
}

/// Sizes of anchored attention for a model, which must have layers that see all of the past.
fn cover(config: &Config, capacity: &Capacity, tile: Tile) -> Result<Cover> {
    match config.global_layers() {
        0 => Err(Error::request("attention", "dense or window: all layers of the model have a sliding window", "aoc")),
        layers => Ok(Cover {
            rows: aoc::largest(capacity.context),
            gap: Cover::GAP,
            lanes: tile.lanes.min(64),
            heads: layers * config.attention.kv_heads,
            kv_heads: config.attention.kv_heads,
            group: config.attention.heads / config.attention.kv_heads,
        }),
    }
}

fn declare(
    weights: &Weights,
    config: &Config,
    cover: Option<Cover>,
    capacity: Capacity,
    tile: Tile,
) -> Result<(Memory, Io, Box<dyn Model>)> {
    let mut memory = Memory::new(capacity);
    memory.tile = tile;
    let io = Io::declare(config, cover, &mut memory);
    let model = models::declare(config, weights, &mut memory)?;
    Ok((memory, io, model))
}

/// Refuses what shaders of the device cannot compute in.
fn check_maths(maths: Maths, caps: Option<&Caps>) -> Result<()> {
    let Some(caps) = caps else { return Ok(()) };
    match maths {
        Maths::F16 if !caps.f16 => Err(Error::request("maths", "f32: the device has no f16 in shaders", "f16")),
        Maths::Coopmat if caps.matrices.is_none() => {
            let has = "f32: the device has no cooperative matrices that sum in f32, or FARPAST_DISABLE names coopmat";
            Err(Error::request("maths", has, "coopmat"))
        }
        Maths::Dot8 if !caps.dot8 => Err(Error::request("maths", "f32: FARPAST_DISABLE names dot8", "dot8")),
        _ => Ok(()),
    }
}

/// Refuses sizes that no step could use.
fn check(c: &Capacity, config: &Config, aoc: bool) -> Result<()> {
    let at_least = |what: &str, n: usize, least: usize| match n {
        n if n >= least => Ok(()),
        n => Err(Error::request(what, format!("at least {least}"), n)),
    };
    at_least("context", c.context, 1)?;
    at_least("sequences", c.sequences, 1)?;
    at_least("batch", c.tokens, c.sequences)?;
    // Some kernels take a workgroup for each token along one axis; every device has so many.
    if c.tokens > u16::MAX as usize {
        return Err(Error::request("batch", format!("at most {}", u16::MAX), c.tokens));
    }
    at_least("pages", c.pages, sequence_pages(aoc, config.attention, c.of(Count::Pages), c.context))?;
    // Page slots and list entries are u32 on the device.
    if c.pages > u32::MAX as usize / PAGE / 2 {
        return Err(Error::request("pages", format!("at most {}", u32::MAX as usize / PAGE / 2), c.pages));
    }
    // The table of rotary angles is one binding; a file may claim any context.
    let fit = c.binding.min(1 << 30) / (4 * config.attention.head_dim);
    if c.context > fit {
        return Err(Error::request("context", format!("at most {fit} positions"), c.context));
    }
    match c.kv.kv_name() {
        None => Err(Error::request("KV format", "f32, f16, q8_0 or q4_0", format!("{:?}", c.kv))),
        Some(_) => Ok(()),
    }
}

//! Many requests on one engine: they join and leave between steps, and each step computes what all of them are at, tokens of
//! prompts and drawn ones together.
//!
//! [`Scheduler::run`] drives the engine, on a thread of its own; a [`Handle`] submits requests to it from any other. Clients take
//! turns, each with its requests in order. A step holds a token of every request that draws, and prompts in chunks up to the
//! engine's batch. When pages run out, the request that began last gives its own back and computes its tokens again later. What a
//! request gets depends on nothing but itself: neither the others nor where chunks ended changes a bit of its logits.

mod queue;
mod stats;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use self::queue::Queue;
pub use self::stats::{Histogram, Stats};
use crate::attention::Attention;
use crate::constrain::Constraint;
use crate::engine::{Drawn, Engine, Launched, check_alternatives, check_drawn, check_ids, shares};
use crate::error::{Error, Result};
use crate::kv::PAGE;
use crate::sampler::{Logprobs, Sampling};
use crate::session::{Session, common};
use crate::speculation::Speculation;
use crate::text::{StopText, StreamDecoder, Tokenizer};

/// What is asked for: a prompt to go on from.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks. Clients take turns.
    pub client: String,
    /// Tokens to begin with, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to draw, at least one; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// How they are drawn.
    pub sampling: Sampling,
    /// What they attend to. With anchors of the far past, answers depend a little on when trees were built, and so on the company.
    pub attention: Attention,
    /// How they are guessed, where a step has room for drafts beside what it must compute. It changes nothing but the time.
    pub speculation: Option<Speculation>,
    /// With how many alternatives the logprobs of each are wanted, if they are.
    pub logprobs: Option<usize>,
    /// What the tokens must follow, from its beginning.
    pub constraint: Option<Constraint>,
    /// The text ends before the first of these.
    pub stop: Vec<String>,
    /// Whether to go on where the model ends its turn.
    pub ignore_end: bool,
    /// Makes text of the tokens.
    pub decoder: StreamDecoder,
}

impl Request {
    /// The most likely tokens after `prompt`, up to the model's end of its turn.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            client: String::new(),
            prompt,
            max_tokens: None,
            sampling: Sampling::default(),
            attention: Attention::Dense,
            speculation: None,
            logprobs: None,
            constraint: None,
            stop: Vec::new(),
            ignore_end: false,
            decoder: StreamDecoder::new(),
        }
    }
}

/// What comes of a request: tokens, and at last one of the others.
#[derive(Debug)]
pub enum Event {
    /// A token was drawn.
    Token {
        /// Its id.
        id: u32,
        /// Text that is certain now; often one word, sometimes nothing.
        text: String,
        /// Where they are wanted; none of the end of the model's turn.
        logprobs: Option<Logprobs>,
    },
    /// The request is over.
    Finished {
        /// Text that was held back.
        text: String,
        /// Why it is over.
        reason: Reason,
        /// Tokens.
        usage: Usage,
    },
    /// The request failed.
    Failed(Error),
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The model ended its turn, or a stop string came.
    Stop,
    /// The limit on its tokens, or no position is left.
    Length,
    /// Nobody wants it any more.
    Cancelled,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 3] = [Reason::Stop, Reason::Length, Reason::Cancelled];
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of those, computed by earlier requests.
    pub cached: usize,
    /// Drawn, the end of the turn among them.
    pub drawn: usize,
}

/// Tokens and texts of a request, at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that may wait.
    pub waiting: usize,
    /// Stop strings of a request.
    pub stops: usize,
    /// Bytes of one.
    pub stop_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { waiting: 256, stops: 16, stop_bytes: 1024 }
    }
}

/// How the hidden states of a text become one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// That of the last token.
    Last,
}

/// Submits requests to a [`Scheduler`]. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    jobs: Sender<Submitted>,
    shared: Arc<Shared>,
}

/// A submitted request, which is cancelled when this is dropped.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Shared {
    limits: Limits,
    vocab: usize,
    context: usize,
    /// Of layers with a sliding window.
    window: usize,
    has_anchors: bool,
    waiting: AtomicUsize,
    stats: Mutex<Stats>,
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Submits a request. `events` is called on the scheduler's thread, and must not wait.
    ///
    /// [`Error::Busy`] where as many wait as may, [`Error::Request`] or [`Error::ContextFull`] where it cannot be computed.
    pub fn submit(&self, request: Request, events: impl FnMut(Event) + Send + 'static) -> Result<Ticket> {
        self.check(&request)?;
        self.send(|cancelled| Submitted::Request(Box::new(Job::new(request, cancelled, Box::new(events)))))
    }

    /// Submits a text whose hidden states are wanted: `done` gets one of unit length, [`Pooling`] says of which. It is computed
    /// between steps, all at once. Errors are those of [`submit`](Self::submit).
    pub fn embed(
        &self,
        tokens: Vec<u32>,
        pooling: Pooling,
        done: impl FnOnce(Result<Vec<f32>>) + Send + 'static,
    ) -> Result<Ticket> {
        self.check_prompt(&tokens)?;
        self.send(|cancelled| Submitted::Text(Text { tokens, pooling, cancelled, done: Box::new(done) }))
    }

    fn send(&self, submitted: impl FnOnce(Arc<AtomicBool>) -> Submitted) -> Result<Ticket> {
        let Shared { limits, waiting, .. } = &*self.shared;
        let join = |n: usize| (n < limits.waiting).then_some(n + 1);
        if waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join).is_err() {
            return Err(Error::Busy { limit: limits.waiting });
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        if let Err(mpsc::SendError(submitted)) = self.jobs.send(submitted(cancelled.clone())) {
            waiting.fetch_sub(1, Ordering::Relaxed);
            submitted.fail(stopped());
        }
        Ok(Ticket(cancelled))
    }

    /// Positions of one request.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Tokens that there are.
    pub fn vocab(&self) -> usize {
        self.shared.vocab
    }

    /// What the scheduler has done and does now.
    pub fn stats(&self) -> Stats {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        let stats = self.shared.stats().clone();
        Stats { waiting: stats.waiting + waiting, ..stats }
    }

    fn check(&self, request: &Request) -> Result<()> {
        let limits = self.shared.limits;
        let Request { prompt, max_tokens, sampling, attention, logprobs, stop, .. } = request;
        sampling.check(self.shared.vocab)?;
        attention.check(self.shared.window, self.shared.has_anchors)?;
        check_alternatives(*logprobs)?;
        self.check_prompt(prompt)?;
        if *max_tokens == Some(0) {
            return Err(Error::request("tokens to draw", "at least 1", 0));
        }
        if stop.len() > limits.stops {
            return Err(Error::request("stop strings", format!("at most {}", limits.stops), stop.len()));
        }
        match stop.iter().map(String::len).find(|len| !(1..=limits.stop_bytes).contains(len)) {
            Some(len) => Err(Error::request("stop string", format!("1 to {} bytes", limits.stop_bytes), len)),
            None => Ok(()),
        }
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<()> {
        let Shared { vocab, context, .. } = *self.shared;
        match prompt.len() {
            0 => return Err(Error::request("prompt", "some tokens", "none")),
            n if n > context => return Err(Error::ContextFull { tokens: n, context }),
            _ => {}
        }
        check_ids(prompt, vocab)
    }
}

/// Steps on the device at once: while one is computed, the next is ready. What a request computes beyond its end is few.
const AHEAD: usize = 2;

/// Runs requests on an engine.
pub struct Scheduler {
    load: Box<dyn FnMut() -> Result<Engine> + Send>,
    /// None after it has failed.
    engine: Option<Engine>,
    tokenizer: Arc<Tokenizer>,
    submitted: Receiver<Submitted>,
    shared: Arc<Shared>,
    waiting: Queue<Job>,
    /// Texts whose hidden states are wanted.
    texts: VecDeque<Text>,
    /// Had begun and lost their pages; the first to begin is the first to go on.
    preempted: VecDeque<Job>,
    /// In the order they began.
    running: Vec<Job>,
    /// Steps on the device, the oldest first.
    flights: VecDeque<Flight>,
    begun: u64,
    stats: Stats,
}

/// A step on the device.
struct Flight {
    launched: Launched,
    /// Jobs of the step, by number, and how many tokens it draws for them.
    jobs: Vec<(u64, usize)>,
}

enum Submitted {
    Request(Box<Job>),
    Text(Text),
}

impl Submitted {
    fn fail(self, e: Error) {
        match self {
            Submitted::Request(mut job) => (job.events)(Event::Failed(e)),
            Submitted::Text(text) => (text.done)(Err(e)),
        }
    }
}

/// A text whose hidden states are wanted.
struct Text {
    tokens: Vec<u32>,
    pooling: Pooling,
    cancelled: Arc<AtomicBool>,
    done: Box<dyn FnOnce(Result<Vec<f32>>) + Send>,
}

/// A request on its way.
struct Job {
    /// Counts those that have begun.
    number: u64,
    request: Request,
    stop: StopText,
    cancelled: Arc<AtomicBool>,
    events: Box<dyn FnMut(Event) + Send>,
    /// Since it began.
    session: Option<Session>,
    cached: usize,
    drawn: usize,
    /// Steps on the device that compute tokens of it, and those that draw one.
    in_flight: usize,
    drawing: usize,
    arrived: Instant,
    /// When its last token came.
    last: Option<Instant>,
}

impl Scheduler {
    /// Requests run on what `load` loads, which is called again after a device was lost.
    pub fn new(
        mut load: impl FnMut() -> Result<Engine> + Send + 'static,
        tokenizer: Arc<Tokenizer>,
        limits: Limits,
    ) -> Result<(Self, Handle)> {
        let engine = load()?;
        let (jobs, submitted) = mpsc::channel();
        let pages = engine.capacity().pages;
        let stats = Stats { pages, free_pages: engine.free_pages(), ..Stats::default() };
        let shared = Arc::new(Shared {
            limits,
            vocab: engine.config().vocab,
            context: engine.capacity().context,
            window: engine.config().window,
            has_anchors: engine.has_anchors(),
            waiting: AtomicUsize::new(0),
            stats: Mutex::new(stats.clone()),
        });
        let handle = Handle { jobs, shared: shared.clone() };
        let scheduler = Self {
            load: Box::new(load),
            engine: Some(engine),
            tokenizer,
            submitted,
            shared,
            waiting: Queue::default(),
            texts: VecDeque::new(),
            preempted: VecDeque::new(),
            running: Vec::new(),
            flights: VecDeque::new(),
            begun: 0,
            stats,
        };
        Ok((scheduler, handle))
    }

    /// Runs requests until all handles are gone and nothing is left to do.
    pub fn run(mut self) {
        loop {
            while self.step() {}
            match self.submitted.recv() {
                Ok(submitted) => self.wait(submitted),
                Err(mpsc::RecvError) => return,
            }
        }
    }

    /// Takes what was submitted, begins a step and ends an earlier one. Returns whether anything is left to do.
    pub fn step(&mut self) -> bool {
        while let Ok(submitted) = self.submitted.try_recv() {
            self.wait(submitted);
        }
        self.drop_cancelled();
        let result = self.ready().and_then(|()| {
            self.embed()?;
            self.admit();
            let ahead = self.engine.as_ref().map_or(1, |engine| if engine.gpu().is_some() { AHEAD } else { 1 });
            let began = self.begin()?;
            if self.flights.len() >= ahead || !began { self.end() } else { Ok(()) }
        });
        if let Err(e) = result {
            self.fail(&e);
        }
        self.publish();
        let nobody_waits = self.waiting.is_empty() && self.texts.is_empty() && self.preempted.is_empty();
        !(nobody_waits && self.running.is_empty() && self.flights.is_empty())
    }

    /// The engine, unless it has failed.
    #[doc(hidden)]
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    fn wait(&mut self, submitted: Submitted) {
        match submitted {
            Submitted::Request(job) => self.waiting.push(&job.request.client.clone(), *job),
            Submitted::Text(text) => self.texts.push_back(text),
        }
    }

    fn drop_cancelled(&mut self) {
        let is_cancelled = |job: &Job| job.cancelled.load(Ordering::Relaxed);
        let waiting = self.waiting.take_where(is_cancelled);
        self.shared.waiting.fetch_sub(waiting.len(), Ordering::Relaxed);
        let (preempted, others) = std::mem::take(&mut self.preempted).into_iter().partition(is_cancelled);
        self.preempted = others;
        let running = self.running.extract_if(.., |job| is_cancelled(job));
        let preempted: VecDeque<_> = preempted;
        let all: Vec<_> = waiting.into_iter().chain(preempted).chain(running).collect();
        for job in all {
            self.finish(job, Reason::Cancelled, String::new());
        }
    }

    /// Loads the engine anew where it has failed and somebody waits for it.
    fn ready(&mut self) -> Result<()> {
        if self.engine.is_none() && !(self.waiting.is_empty() && self.texts.is_empty()) {
            self.engine = Some((self.load)()?);
        }
        Ok(())
    }

    /// Computes the hidden states of the first text that waits, where there are pages for it.
    fn embed(&mut self) -> Result<()> {
        let (Some(engine), Some(text)) = (&mut self.engine, self.texts.pop_front()) else { return Ok(()) };
        if text.cancelled.load(Ordering::Relaxed) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let mut session = engine.session();
        session.push(&text.tokens);
        let n = text.tokens.len();
        let from = if text.pooling == Pooling::Last { n - 1 } else { 0 };
        let mut pooled = vec![0.0; engine.config().hidden];
        let add = |_: usize, row: &[f32]| pooled.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        let result = engine.each_hidden(&mut session, from, add);
        if matches!(result, Err(Error::OutOfPages { .. })) && !self.running.is_empty() {
            self.texts.push_front(text);
            return Ok(());
        }
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.stats.prompt_tokens += n as u64;
        // Of unit length the mean and the sum are the same.
        let length = pooled.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        match result {
            Ok(()) => (text.done)(Ok(pooled.iter().map(|x| (x / length) as f32).collect())),
            Err(e) => {
                (text.done)(Err(again(&e)));
                return Err(e);
            }
        }
        Ok(())
    }

    /// Begins requests while there is room for them.
    fn admit(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        if !self.texts.is_empty() && !self.running.is_empty() {
            // The next text gets the pages of those that end.
            return;
        }
        while self.running.len() < engine.capacity().sequences {
            // Each that runs may soon need one more.
            let room = engine.free_pages().saturating_sub(self.running.len());
            let fits = |tokens: &[u32]| engine.pages_for(tokens) <= room || self.running.is_empty();
            let mut job = if let Some(job) = self.preempted.front() {
                // What it has drawn on the device may not all be known yet.
                if job.in_flight > 0 || !fits(job.tokens()) {
                    return;
                }
                let Some(job) = self.preempted.pop_front() else { return };
                job
            } else {
                let shares = |job: &&Job| shares_more(engine, &self.running, job.tokens());
                let Some((turn, job)) = self.waiting.fronts().enumerate().find(|(_, job)| !shares(job)) else {
                    return;
                };
                // Whose turn it is waits for room; nobody goes before.
                if !fits(job.tokens()) {
                    return;
                }
                let Some(mut job) = self.waiting.take(turn) else { return };
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                self.begun += 1;
                job.number = self.begun;
                let session = match engine.session_with(job.request.attention) {
                    Ok(session) => job.session.insert(session),
                    Err(e) => {
                        self.stats.failed += 1;
                        (job.events)(Event::Failed(e));
                        continue;
                    }
                };
                session.sampling = job.request.sampling.clone();
                session.logprobs = job.request.logprobs;
                session.speculation = job.request.speculation;
                session.push(&job.request.prompt);
                session.constrain(job.request.constraint.take());
                self.stats.prompt_tokens += job.request.prompt.len() as u64;
                job
            };
            let cached = job.session.as_mut().map_or(0, |session| engine.recall(session));
            if job.drawn == 0 {
                job.cached = cached;
            }
            self.running.push(job);
        }
    }

    /// Begins a step of what all requests are at; false where none can go on before an earlier step has ended.
    fn begin(&mut self) -> Result<bool> {
        let Some(engine) = &mut self.engine else { return Ok(false) };
        let mut drafts = true;
        loop {
            let wanted: Vec<_> = self.running.iter().map(|job| job.next(engine)).collect();
            let mut counts = shares(&wanted, engine.capacity().tokens);
            if drafts {
                draft(engine, &mut self.running, &mut counts)?;
            }
            if counts.iter().all(|n| *n == 0) {
                return Ok(false);
            }
            // Those that wait for what is drawn behind drafts are let alone.
            let (mut sessions, in_step): (Vec<_>, Vec<_>) = self
                .running
                .iter_mut()
                .zip(&counts)
                .filter(|(_, n)| **n > 0)
                .filter_map(|(job, n)| Some((job.session.as_mut()?, *n)))
                .unzip();
            match engine.begin(&mut sessions, &in_step) {
                Ok(launched) => {
                    let mut jobs = Vec::new();
                    for (job, n) in self.running.iter_mut().zip(counts).filter(|(_, n)| *n > 0) {
                        let Some(session) = &job.session else { continue };
                        let draws = if session.pending().is_empty() { 1 + session.drafted() } else { 0 };
                        if n > draws.max(1) {
                            engine.keep(session);
                        }
                        job.in_flight += 1;
                        job.drawing += usize::from(draws > 0);
                        jobs.push((job.number, draws));
                    }
                    self.flights.push_back(Flight { launched, jobs });
                    return Ok(true);
                }
                Err(Error::OutOfPages { .. }) if sessions.iter().any(|s| s.drafted() > 0) => {
                    sessions.iter_mut().for_each(|s| drop(s.take_draft()));
                    drafts = false;
                }
                Err(Error::OutOfPages { .. }) if self.running.len() > 1 => {
                    let Some(mut job) = self.running.pop() else { continue };
                    if let Some(session) = &mut job.session {
                        engine.keep(session);
                        session.release();
                    }
                    self.preempted.push_front(job);
                    self.stats.preemptions += 1;
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Waits for the oldest step on the device, if there is one, and passes on what it drew.
    fn end(&mut self) -> Result<()> {
        let Some(Flight { launched, jobs }) = self.flights.pop_front() else { return Ok(()) };
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let mut drawn = engine.drawn(launched)?.into_iter();
        self.stats.steps += 1;
        for (number, draws) in jobs {
            let drawn: Vec<_> = drawn.by_ref().take(draws).collect();
            let mut all = self.running.iter_mut().chain(&mut self.preempted);
            // It may have ended meanwhile.
            let Some(job) = all.find(|job| job.number == number) else { continue };
            job.in_flight -= 1;
            if drawn.is_empty() {
                continue;
            }
            job.drawing -= 1;
            let (Some(session), Some(engine)) = (&mut job.session, &mut self.engine) else { continue };
            let mut stands = engine.verify(session, drawn).into_iter();
            let take = |drawn| job.take(drawn, &self.tokenizer, self.shared.context, &mut self.stats);
            let Some((text, over)) = stands.find_map(take) else { continue };
            let job = match self.running.iter().position(|job| job.number == number) {
                Some(i) => Some(self.running.remove(i)),
                None => {
                    self.preempted.iter().position(|job| job.number == number).and_then(|i| self.preempted.remove(i))
                }
            };
            let Some(mut job) = job else { continue };
            match over {
                Ok(reason) => self.finish(job, reason, text),
                Err(e) => {
                    self.stats.failed += 1;
                    (job.events)(Event::Failed(e));
                }
            }
        }
        Ok(())
    }

    /// Says that a request is over. What it has computed is kept for others.
    fn finish(&mut self, mut job: Job, reason: Reason, text: String) {
        if let (Some(engine), Some(session)) = (&mut self.engine, &job.session) {
            engine.keep(session);
        }
        let usage = Usage { prompt: job.request.prompt.len(), cached: job.cached, drawn: job.drawn };
        self.stats.finished[reason as usize] += 1;
        self.stats.request.add(job.arrived.elapsed());
        (job.events)(Event::Finished { text, reason, usage });
    }

    /// The engine can do no more: what it computes fails, and who has not begun waits for another, unless that is what failed.
    fn fail(&mut self, e: &Error) {
        let mut failed: Vec<_> = self.running.drain(..).chain(self.preempted.drain(..)).collect();
        if self.engine.is_none() {
            let waiting = self.waiting.take_where(|_| true);
            let texts = std::mem::take(&mut self.texts);
            self.shared.waiting.fetch_sub(waiting.len() + texts.len(), Ordering::Relaxed);
            failed.extend(waiting);
            texts.into_iter().for_each(|text| (text.done)(Err(again(e))));
        }
        self.stats.failed += failed.len() as u64;
        for mut job in failed {
            (job.events)(Event::Failed(again(e)));
        }
        self.flights.clear();
        self.engine = None;
    }

    fn publish(&mut self) {
        let stats = &mut self.stats;
        stats.running = self.running.len();
        stats.waiting = self.preempted.len();
        if let Some(engine) = &self.engine {
            (stats.pages, stats.free_pages) = (engine.capacity().pages, engine.free_pages());
            (stats.kept_pages, stats.prefixes) = (engine.kept_pages(), engine.prefix_counts());
            stats.drafts = engine.draft_counts();
        }
        self.shared.stats().clone_from(stats);
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let begun = self.running.drain(..).chain(self.preempted.drain(..));
        let jobs = begun.chain(self.waiting.take_where(|_| true)).map(|job| Submitted::Request(Box::new(job)));
        let texts = self.texts.drain(..).map(Submitted::Text);
        jobs.chain(texts).chain(self.submitted.try_iter()).for_each(|submitted| submitted.fail(stopped()));
    }
}

impl Job {
    fn new(request: Request, cancelled: Arc<AtomicBool>, events: Box<dyn FnMut(Event) + Send>) -> Self {
        Self {
            number: 0,
            stop: StopText::new(request.stop.clone()),
            request,
            cancelled,
            events,
            session: None,
            cached: 0,
            drawn: 0,
            in_flight: 0,
            drawing: 0,
            arrived: Instant::now(),
            last: None,
        }
    }

    /// All tokens known.
    fn tokens(&self) -> &[u32] {
        self.session.as_ref().map_or(&self.request.prompt, Session::tokens)
    }

    /// Tokens that a step could compute for it.
    fn next(&self, engine: &Engine) -> usize {
        let Some(session) = &self.session else { return 0 };
        match session.pending().len() {
            0 => {
                let more = self.request.max_tokens.is_none_or(|most| self.drawn + self.drawing < most);
                let room = session.tokens().len() + self.drawing <= engine.capacity().context;
                // What may come next is known when the token before it is, and so is what may follow a draft.
                let ahead = self.drawing > 0 && !session.is_constrained() && session.drafted() == 0;
                usize::from(more && room && ahead && engine.draws_next_of(session))
            }
            n => n,
        }
    }

    /// Takes a token that was drawn and passes on its text. If that is the end: the text that is left, and why.
    fn take(
        &mut self,
        Drawn { id, logprobs }: Drawn,
        tokenizer: &Tokenizer,
        context: usize,
        stats: &mut Stats,
    ) -> Option<(String, Result<Reason>)> {
        if let Err(e) = check_drawn(id) {
            return Some((String::new(), Err(e)));
        }
        let session = self.session.as_mut()?;
        session.push(&[id]);
        self.drawn += 1;
        let now = Instant::now();
        match self.last.replace(now) {
            None => stats.first_token.add(now - self.arrived),
            Some(last) => stats.next_token.add(now - last),
        }
        stats.drawn_tokens += 1;
        let constrained = session.is_constrained();
        let ended = (constrained || !self.request.ignore_end) && tokenizer.stop_ids().contains(&id);
        let (text, stopped) = match ended {
            true => (String::new(), false),
            false => self.stop.push(self.request.decoder.push(id, tokenizer)),
        };
        let logprobs = logprobs.filter(|_| !ended);
        (self.events)(Event::Token { id, text, logprobs });
        let full = self.request.max_tokens == Some(self.drawn) || session.tokens().len() > context;
        if stopped {
            return Some((String::new(), Ok(Reason::Stop)));
        }
        if !ended && !full {
            // Here it fails this request alone, and not the step of all.
            return session.allowed(1).err().map(|e| (String::new(), Err(e)));
        }
        let (mut text, stopped) = self.stop.push(self.request.decoder.finish());
        if !stopped {
            text.push_str(&self.stop.finish());
        }
        Some((text, Ok(if ended || stopped { Reason::Stop } else { Reason::Length })))
    }
}

/// Guesses tokens of those that speculate and have all tokens but one computed: as many as a step of `counts` has room for, beside
/// which each gets about the same. One whose last token is being drawn waits for it, where there may be a draft then.
fn draft(engine: &mut Engine, running: &mut [Job], counts: &mut [usize]) -> Result<()> {
    let speculates = |job: &Job| job.session.as_ref().is_some_and(|s| s.speculation.is_some());
    let (outputs, tokens) = (engine.capacity().outputs, engine.capacity().tokens);
    let mut room = outputs.saturating_sub(running.len()).min(tokens - counts.iter().sum::<usize>());
    let mut left = running.iter().zip(&*counts).filter(|(job, n)| **n == 1 && speculates(job)).count();
    for (job, n) in running.iter_mut().zip(counts).filter(|(job, n)| **n == 1 && speculates(job)) {
        let share = room.div_ceil(left);
        left -= 1;
        let most = job.request.max_tokens.map_or(share, |most| share.min(most - job.drawn - job.drawing - 1));
        let Some(session) = &mut job.session else { continue };
        match session.pending().len() {
            0 if most > 0 && engine.would_draft(session) => *n = 0,
            1 => *n += engine.draft(session, most)?,
            _ => continue,
        }
        room -= *n.max(&mut 1) - 1;
    }
    Ok(())
}

/// Whether one of those that run will soon have computed more of these tokens than is kept.
fn shares_more(engine: &Engine, running: &[Job], tokens: &[u32]) -> bool {
    let kept = engine.kept(tokens);
    running
        .iter()
        .filter(|job| job.drawn + job.drawing == 0)
        .any(|job| common(job.tokens(), &tokens[..tokens.len() - 1]) / PAGE * PAGE > kept)
}

/// The same for another request.
fn again(e: &Error) -> Error {
    match e {
        Error::DeviceLost { device, why } => Error::DeviceLost { device: device.clone(), why: why.clone() },
        Error::OutOfMemory { device, what, bytes } => {
            Error::OutOfMemory { device: device.clone(), what: what.clone(), bytes: *bytes }
        }
        other => Error::Device { device: "engine".into(), what: other.to_string() },
    }
}

fn stopped() -> Error {
    Error::Device { device: "engine".into(), what: "it was stopped".into() }
}

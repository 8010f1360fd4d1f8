//! OpenAI's API over HTTP: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/models`; beside it `/health`, `/metrics` and a page to
//! chat on. Feature `server`.
//!
//! A request that is wrong is answered by a 4xx status and an error that names the field; so is one that asks for what this server
//! does not do. Where as many requests wait as may, or while the engine is loaded anew, the status is 503.

mod answer;
mod fields;
mod metrics;
mod refusal;
mod request;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_core::Stream;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use self::answer::{Choice, Head, Kind};
use self::fields::Fields;
use self::refusal::{Refusal, Result, json_response};
use self::request::{ChatRequest, Common, CompletionRequest, EmbeddingRequest, Prompt};
use crate::attention::Attention;
use crate::constrain::{Constraint, Grammar, Grammars};
use crate::error::Error;
use crate::sampler::{BREAKERS, Sampling};
use crate::scheduler::{self, Event, Handle, Pooling, Ticket};
use crate::speculation::Speculation;
use crate::text::{Chat, ChatTemplate, Special, StreamDecoder, Tokenizer};

/// Who may ask for how much.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What `Authorization: Bearer` must say; `None` lets everyone in.
    pub api_key: Option<String>,
    /// The page from which browsers may ask, or `*` for any; `None`: only the server's own.
    pub cors: Option<String>,
    /// How embeddings are made.
    pub pooling: Pooling,
    /// What tokens of requests attend to.
    pub attention: Attention,
    /// How they are guessed.
    pub speculation: Option<Speculation>,
    /// Bytes of a request.
    pub body: usize,
    /// How long requests may take to end once the server is asked to.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let (pooling, attention, speculation) = Default::default();
        let (body, drain) = (8 << 20, Duration::from_secs(30));
        Self { api_key: None, cors: None, pooling, attention, speculation, body, drain }
    }
}

/// A model that is served.
pub struct Service {
    handle: Handle,
    tokenizer: Arc<Tokenizer>,
    /// None for a model that cannot chat.
    template: Option<ChatTemplate>,
    model: String,
    options: ServerOptions,
    /// Once a grammar is asked for.
    grammars: Arc<OnceLock<crate::Result<Grammars>>>,
    started: u64,
    requests: AtomicU64,
    draining: AtomicBool,
}

impl Service {
    /// Answers by `model`, whose requests `handle` computes.
    pub fn new(
        handle: Handle,
        tokenizer: Arc<Tokenizer>,
        template: Option<ChatTemplate>,
        model: impl Into<String>,
        options: ServerOptions,
    ) -> Self {
        Self {
            handle,
            tokenizer,
            template,
            model: model.into(),
            options,
            grammars: Arc::default(),
            started: seconds(),
            requests: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        }
    }

    /// Serves on `listener` until `end` is ready, then answers what was asked and returns.
    pub async fn serve(
        self,
        listener: TcpListener,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let service = Arc::new(self);
        let (ended, mut drained) = tokio::sync::watch::channel(());
        let draining = service.clone();
        let end = async move {
            end.await;
            draining.draining.store(true, Ordering::Relaxed);
            drop(ended);
        };
        let drain = service.options.drain;
        let app = router(service).into_make_service_with_connect_info::<SocketAddr>();
        tokio::select! {
            result = axum::serve(listener, app).with_graceful_shutdown(end) => result,
            () = async {
                // An error says that it has ended.
                let _ = drained.changed().await;
                tokio::time::sleep(drain).await;
            } => Ok(()),
        }
    }
}

/// The page to chat on.
const PAGE: &str = include_str!("server/chat.html");

/// How long a body may take to come.
const BODY: Duration = Duration::from_secs(60);

/// Answers of one request, at most.
const CHOICES: usize = 128;

/// How often a stream on which nothing comes says that it is alive.
const PING: Duration = Duration::from_secs(15);

type Shared = State<Arc<Service>>;

fn router(service: Arc<Service>) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/embeddings", post(embed))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .layer(from_fn_with_state(service.clone(), authorized));
    let not_found =
        || async { Refusal::body(StatusCode::NOT_FOUND, "there is nothing at this address").into_response() };
    let not_allowed =
        || async { Refusal::body(StatusCode::METHOD_NOT_ALLOWED, "this method is not allowed here").into_response() };
    api.route("/health", get(health))
        .route("/metrics", get(measures))
        .route("/", get(|| async { Html(PAGE) }))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(service.clone(), shared_with_pages))
        .with_state(service)
}

/// Lets in who has the key.
async fn authorized(State(service): Shared, request: Request, next: Next) -> Response {
    let Some(key) = &service.options.api_key else { return next.run(request).await };
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    // Digests take the same time to compare, whatever was given.
    match Sha256::digest(given) == Sha256::digest(key) {
        true => next.run(request).await,
        false => Refusal::unauthorized().into_response(),
    }
}

/// Says to browsers which pages may ask.
async fn shared_with_pages(State(service): Shared, request: Request, next: Next) -> Response {
    let origin = service.options.cors.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
    let Some(origin) = origin else { return next.run(request).await };
    let mut response = match *request.method() {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, content-type"));
    response
}

async fn health(State(service): Shared) -> Response {
    match service.draining.load(Ordering::Relaxed) {
        false => json_response(StatusCode::OK, &json!({ "status": "ok" })),
        true => Refusal::overloaded("the server is about to end").into_response(),
    }
}

async fn measures(State(service): Shared) -> Response {
    let text = metrics::text(&service.handle.stats(), &service.model);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn models(State(service): Shared) -> Response {
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [service.model_json()] }))
}

async fn model(State(service): Shared, axum::extract::Path(name): axum::extract::Path<String>) -> Response {
    match name == service.model {
        true => json_response(StatusCode::OK, &service.model_json()),
        false => Refusal::no_such_model(&name).into_response(),
    }
}

async fn chat(State(service): Shared, request: Request) -> Response {
    let answered = async {
        let (fields, client) = service.read(request).await?;
        let ChatRequest { messages, tools, forced, variables, mut common } = ChatRequest::read(fields)?;
        service.expect_model(common.model.as_deref())?;
        common.user.get_or_insert(client);
        let Some(template) = &service.template else {
            return Err(Refusal::invalid("model", "this model has no chat template: use /v1/completions"));
        };
        let names: Vec<String> =
            tools.iter().filter_map(|tool| tool["function"]["name"].as_str().map(Into::into)).collect();
        let style = if tools.is_empty() { None } else { template.tool_style() };
        if style.is_none() && !tools.is_empty() {
            return Err(Refusal::unsupported("tools", "a tool, of which the model's chat template says nothing,"));
        }
        let rendering = service.clone();
        let rendered = tokio::task::spawn_blocking(move || {
            let chat = Chat {
                messages: &messages,
                tools: &tools,
                add_generation_prompt: true,
                extra: variables,
                ..Chat::default()
            };
            rendering.template.as_ref().map(|template| template.encode(&rendering.tokenizer, &chat))
        });
        let prompt = match rendered.await {
            Ok(Some(prompt)) => prompt.map_err(|e| Refusal::of(&e, "messages"))?,
            _ => return Err(Refusal::invalid("messages", "the chat template could not be rendered")),
        };
        if let (Some(style), false) = (style, forced.is_empty()) {
            common.grammar = Some((Grammar::Lark(style.grammar(&forced, &service.tokenizer)), "tools"));
        }
        // Marks of calls are control tokens in some vocabularies.
        let decoder = if style.is_some() { StreamDecoder::with_control() } else { StreamDecoder::new() };
        let tools = style.map(|style| (style, names));
        service.answer(Kind::Chat, vec![prompt], decoder, common, tools, "messages").await
    };
    answered.await.unwrap_or_else(Refusal::into_response)
}

async fn complete(State(service): Shared, request: Request) -> Response {
    let answered = async {
        let (fields, client) = service.read(request).await?;
        let CompletionRequest { prompts, mut common } = CompletionRequest::read(fields)?;
        service.expect_model(common.model.as_deref())?;
        common.user.get_or_insert(client);
        let prompts = service.tokens(prompts, "prompt").await?;
        service.answer(Kind::Completion, prompts, StreamDecoder::continuing(), common, None, "prompt").await
    };
    answered.await.unwrap_or_else(Refusal::into_response)
}

async fn embed(State(service): Shared, request: Request) -> Response {
    let answered = async {
        let (fields, _) = service.read(request).await?;
        let EmbeddingRequest { model, input, base64 } = EmbeddingRequest::read(fields)?;
        service.expect_model(model.as_deref())?;
        let texts = service.tokens(input, "input").await?;
        let tokens: usize = texts.iter().map(Vec::len).sum();
        let (mut tickets, mut answers) = (Vec::new(), Vec::new());
        for text in texts {
            let (sender, answer) = oneshot::channel();
            let done = move |result| drop(sender.send(result));
            let ticket = service.handle.embed(text, service.options.pooling, done);
            tickets.push(ticket.map_err(|e| Refusal::of(&e, "input"))?);
            answers.push(answer);
        }
        let mut data = Vec::new();
        for (index, answer) in answers.into_iter().enumerate() {
            let answer = answer.await.map_err(|_| Refusal::overloaded("the engine has ended"))?;
            let numbers = answer.map_err(|e| Refusal::of(&e, "input"))?;
            let embedding = match base64 {
                true => {
                    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                    json!(BASE64_STANDARD.encode(bytes))
                }
                false => json!(numbers),
            };
            data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
        }
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        let answer = json!({ "object": "list", "data": data, "model": service.model, "usage": usage });
        Ok(json_response(StatusCode::OK, &answer))
    };
    answered.await.unwrap_or_else(Refusal::into_response)
}

impl Service {
    /// The tokens of texts, which are those of field `param`.
    async fn tokens(&self, prompts: Vec<Prompt>, param: &str) -> Result<Vec<Vec<u32>>> {
        let tokenizer = self.tokenizer.clone();
        let tokens = move |prompt| match prompt {
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Text(text) => tokenizer.encode(&text, Special::Parse).map(|tokens| tokenizer.with_bos(tokens)),
        };
        let encoded =
            tokio::task::spawn_blocking(|| prompts.into_iter().map(tokens).collect::<crate::Result<Vec<_>>>());
        match encoded.await {
            Ok(prompts) => prompts.map_err(|e| Refusal::of(&e, param)),
            Err(_) => Err(Refusal::invalid(param, format!("{param} could not be tokenized"))),
        }
    }

    fn model_json(&self) -> Json {
        json!({
            "id": self.model,
            "object": "model",
            "created": self.started,
            "owned_by": "farpast",
            "max_model_len": self.handle.context(),
        })
    }

    /// The fields of a request's body, and who asks.
    async fn read(&self, request: Request) -> Result<(Fields, String)> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(Refusal::overloaded("the server is about to end"));
        }
        let most = self.options.body;
        let too_large =
            || Refusal::body(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {most} bytes, the limit"));
        if declared(request.headers()).is_some_and(|bytes| bytes > most as u64) {
            return Err(too_large());
        }
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_string());
        let body = tokio::time::timeout(BODY, to_bytes(request.into_body(), most)).await;
        let late = |_| Refusal::body(StatusCode::REQUEST_TIMEOUT, "the body does not come");
        // A body that breaks off has nobody to read the answer.
        let body = body.map_err(late)?.map_err(|_| too_large())?;
        Ok((Fields::of_body(&body)?, peer.unwrap_or_default()))
    }

    fn expect_model(&self, name: Option<&str>) -> Result<()> {
        match name {
            Some(name) if name != self.model => Err(Refusal::no_such_model(name)),
            _ => Ok(()),
        }
    }

    /// The sampling of a request, with the tokens of this vocabulary.
    async fn sampling(&self, common: &Common) -> Result<Sampling> {
        let mut sampling = common.sampling.clone();
        if let Some((id, _)) = sampling.logit_bias.iter().find(|(id, _)| *id as usize >= self.handle.vocab()) {
            return Err(Refusal::invalid("logit_bias", format!("logit_bias: there is no token {id}")));
        }
        if sampling.dry.acts() {
            let (tokenizer, texts) = (self.tokenizer.clone(), common.breakers.clone());
            let breakers = tokio::task::spawn_blocking(move || match texts {
                Some(texts) => tokenizer.containing(&texts).collect(),
                None => tokenizer.containing(&BREAKERS).collect(),
            });
            sampling.dry.breakers = breakers.await.map_err(|_| Refusal::overloaded("the server is about to end"))?;
        }
        Ok(sampling)
    }

    /// Compiles a grammar, with an error that names the field where it was.
    async fn constraint(&self, grammar: Option<(Grammar, &'static str)>) -> Result<Option<Constraint>> {
        let Some((grammar, param)) = grammar else { return Ok(None) };
        let (grammars, tokenizer, vocab) = (self.grammars.clone(), self.tokenizer.clone(), self.handle.vocab());
        let compiled =
            tokio::task::spawn_blocking(move || match grammars.get_or_init(|| Grammars::new(&tokenizer, vocab)) {
                Ok(grammars) => grammars.constraint(&grammar).map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            });
        let compiled = compiled.await.map_err(|_| Refusal::overloaded("the server is about to end"))?;
        compiled.map(Some).map_err(|e| Refusal::invalid(param, e))
    }

    /// Has the prompts computed and answers as the request wants it.
    async fn answer(
        &self,
        kind: Kind,
        prompts: Vec<Vec<u32>>,
        decoder: StreamDecoder,
        common: Common,
        tools: Option<(crate::text::ToolStyle, Vec<String>)>,
        param: &'static str,
    ) -> Result<Response> {
        if prompts.len() * common.n > CHOICES {
            return Err(Refusal::invalid("n", format!("n times the prompts must be at most {CHOICES}")));
        }
        let (sampling, constraint) = (self.sampling(&common).await?, self.constraint(common.grammar).await?);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{:x}-{number:x}", self.started);
        let head = Arc::new(Head { kind, id, created: seconds(), model: self.model.clone(), n: common.n });
        // Only logprobs spell tokens.
        let tokenizer = common.logprobs.map(|_| self.tokenizer.clone());
        let (sender, events) = unbounded_channel();
        let (mut tickets, mut choices) = (Vec::new(), Vec::new());
        for prompt in prompts {
            for i in 0..common.n {
                let index = choices.len();
                let seed = sampling.seed.wrapping_add(i as u64);
                let request = scheduler::Request {
                    client: common.user.clone().unwrap_or_default(),
                    prompt: prompt.clone(),
                    max_tokens: common.max_tokens,
                    sampling: Sampling { seed, ..sampling.clone() },
                    attention: self.options.attention,
                    speculation: self.options.speculation,
                    logprobs: common.logprobs,
                    constraint: constraint.clone(),
                    stop: common.stop.clone(),
                    ignore_end: common.ignore_end,
                    decoder: decoder.clone(),
                };
                let sender = sender.clone();
                // Who has gone needs no events.
                let submitted = self.handle.submit(request, move |event| _ = sender.send((index, event)));
                tickets.push(submitted.map_err(|e| Refusal::of(&e, param))?);
                choices.push(Choice::new(head.clone(), index, tools.clone(), tokenizer.clone()));
            }
        }
        let answer = Answer { head, choices, events, _tickets: tickets };
        match common.stream {
            false => answer.whole(param).await,
            true => Ok(answer.stream(common.include_usage, param)),
        }
    }
}

/// What was asked for, on its way. When it is dropped nothing more is computed for it.
struct Answer {
    head: Arc<Head>,
    choices: Vec<Choice>,
    events: UnboundedReceiver<(usize, Event)>,
    _tickets: Vec<Ticket>,
}

impl Answer {
    /// The chunks of what comes next; `None` when all is over.
    async fn next(&mut self) -> std::result::Result<Option<Vec<Json>>, Error> {
        if self.choices.iter().all(|choice| choice.end.is_some()) {
            return Ok(None);
        }
        match self.events.recv().await {
            Some((_, Event::Failed(e))) => Err(e),
            Some((i, event)) => Ok(self.choices.get_mut(i).map(|choice| choice.take(event))),
            None => Ok(None),
        }
    }

    async fn whole(mut self, param: &str) -> Result<Response> {
        while self.next().await.map_err(|e| Refusal::of(&e, param))?.is_some() {}
        Ok(json_response(StatusCode::OK, &self.head.whole(&self.choices)))
    }

    fn stream(mut self, include_usage: bool, param: &'static str) -> Response {
        let (lines, body) = unbounded_channel();
        tokio::spawn(async move {
            for chunk in self.choices.iter().filter_map(Choice::first_chunk) {
                send(&lines, &chunk);
            }
            loop {
                tokio::select! {
                    next = self.next() => match next {
                        Ok(Some(chunks)) => chunks.iter().for_each(|chunk| send(&lines, chunk)),
                        Ok(None) => break,
                        Err(e) => return send(&lines, &Refusal::of(&e, param).json()),
                    },
                    // Nobody reads any more.
                    () = lines.closed() => return,
                    () = tokio::time::sleep(PING) => drop(lines.send(": ping\n\n".into())),
                }
            }
            if include_usage {
                send(&lines, &self.head.usage_chunk(&self.choices));
            }
            let _ = lines.send("data: [DONE]\n\n".into());
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(Lines(body))).into_response()
    }
}

/// Sends an event of a stream; that nobody reads is seen elsewhere.
fn send(lines: &UnboundedSender<String>, json: &Json) {
    let _ = lines.send(format!("data: {json}\n\n"));
}

/// The body of a stream.
struct Lines(UnboundedReceiver<String>);

impl Stream for Lines {
    type Item = std::result::Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(Ok))
    }
}

/// Bytes of the body, as its sender says.
fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

//! The server as its clients see it: over TCP, on a small model.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farpast::chat::{template, tokenizer};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::Bytes;
use farpast::scheduler::{Limits, Pooling, Scheduler};
use farpast::server::{ServerOptions, Service};
use farpast::speculation::Speculation;
use farpast::weights::Weights;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::cases::Random;
use crate::harness::{is_alone, resident};
use crate::toy_chat::{CONTEXT, toy};

struct Server {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn new() -> Self {
        Self::with(EngineOptions::default(), Limits::default(), ServerOptions::default())
    }

    fn with(options: EngineOptions, limits: Limits, settings: ServerOptions) -> Self {
        crate::harness::gpu();
        let backend = Backend::Gpu(crate::harness::device());
        let options = EngineOptions { backend, batch: 64, sequences: options.sequences.max(4), ..options };
        let weights = Weights::from_bytes("toy.gguf", Bytes::new(toy(None).write())).unwrap();
        let tokenizer = Arc::new(tokenizer(&weights).unwrap());
        let template = template(&weights, &tokenizer).unwrap();
        let load = move || Engine::load(&weights, &options, |_| ());
        let (scheduler, handle) = Scheduler::new(load, tokenizer.clone(), limits).unwrap();
        let service = Service::new(handle, tokenizer, Some(template), "toy", settings);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let serving = move || {
            let ended = async { drop(ended.await) };
            runtime.block_on(service.serve(listener, ended)).unwrap();
        };
        let threads = vec![std::thread::spawn(serving), std::thread::spawn(move || scheduler.run())];
        Self { address, end: Some(end), threads }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let mut stream = self.open(method, path, headers, body);
        let mut bytes = vec![];
        stream.read_to_end(&mut bytes).unwrap();
        Reply::parse(&bytes)
    }

    /// The connection after a request was sent.
    fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // Who answers early may not read it all.
        let _ = stream.write_all(body.as_bytes());
        stream
    }

    fn post(&self, path: &str, body: &Json) -> Reply {
        self.send("POST", path, "", &body.to_string())
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", "")
    }

    /// A figure of `/metrics`.
    fn measure(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("vllm:{name}{{"))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until nothing runs, and says what share of the pages is in use then.
    fn idle(&self) -> f64 {
        let began = Instant::now();
        while self.measure("num_requests_running") + self.measure("num_requests_waiting") > 0.0 {
            assert!(began.elapsed() < Duration::from_secs(30), "requests go on");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.measure("kv_cache_usage_perc")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

struct Reply {
    status: u16,
    headers: String,
    body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("headers end");
        let headers = String::from_utf8(bytes[..at].to_vec()).unwrap().to_lowercase();
        let mut rest = &bytes[at + 4..];
        let mut body = vec![];
        if headers.contains("transfer-encoding: chunked") {
            loop {
                let line = rest.windows(2).position(|w| w == b"\r\n").expect("a chunk's length");
                let n = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
                body.extend(&rest[line + 2..line + 2 + n]);
                rest = &rest[line + 4 + n..];
                if n == 0 {
                    break;
                }
            }
        } else {
            body.extend(rest);
        }
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, headers, body: String::from_utf8(body).unwrap() }
    }

    fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The chunks of a stream.
    #[track_caller]
    fn chunks(&self) -> Vec<Json> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert!(self.headers.contains("content-type: text/event-stream"));
        let events: Vec<_> = self.body.split_terminator("\n\n").map(|e| e.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.last(), Some(&"[DONE]"));
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETE: &str = "/v1/completions";

fn hello() -> Json {
    json!({ "model": "toy", "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 12, "seed": 5 })
}

fn with(mut body: Json, field: &str, value: Json) -> Json {
    body[field] = value;
    body
}

#[test]
fn a_chat_is_answered_whole_and_as_a_stream_alike() {
    let server = Server::new();
    let whole = server.post(CHAT, &hello());
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let usage = &whole["usage"];
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("toy")));
    assert_eq!(usage["total_tokens"].as_u64(), Some(usage["prompt_tokens"].as_u64().unwrap() + 12));
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());

    let body = with(with(hello(), "stream", true.into()), "stream_options", json!({ "include_usage": true }));
    let chunks = server.post(CHAT, &body).chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let streamed: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str().map(String::from)).collect();
    assert_eq!(streamed, text);
    let [.., last, usage_chunk] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(usage_chunk["choices"], json!([]));
    // What the first request has computed is not computed again.
    let cached = usage_chunk["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(cached, (usage["prompt_tokens"].as_u64().unwrap() - 1) / 16 * 16);
    assert!(chunks.iter().all(|c| c["id"] == chunks[0]["id"] && c["object"] == "chat.completion.chunk"));
    assert_eq!(server.idle(), 0.0);
}

#[test]
fn completions_take_texts_and_tokens_and_answer_each_n_times() {
    let server = Server::new();
    let body = json!({ "prompt": "abc", "max_tokens": 9, "temperature": 0, "ignore_eos": true });
    let one = server.post(COMPLETE, &body).json();
    let text = &one["choices"][0]["text"];
    assert_eq!((&one["object"], &one["usage"]["completion_tokens"]), (&json!("text_completion"), &json!(9)));
    let ids = json!([97, 98, 99]);
    let prompts = [ids.clone(), json!(["abc"]), json!([ids, "abc"])];
    for (prompt, n) in prompts.into_iter().zip([1, 1, 2]) {
        let answer = server.post(COMPLETE, &with(body.clone(), "prompt", prompt.clone())).json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), n, "{answer}");
        assert!(choices.iter().all(|choice| choice["text"] == *text), "{prompt}: {answer}");
        assert_eq!(answer["usage"]["prompt_tokens"], 3 * n);
    }
    // Each of n has another seed, and the seeds are those of single requests.
    let drawn = with(with(body.clone(), "temperature", 1.0.into()), "seed", 7.into());
    let three = server.post(COMPLETE, &with(drawn.clone(), "n", 3.into())).json();
    for i in 0..3 {
        let single = server.post(COMPLETE, &with(drawn.clone(), "seed", (7 + i).into())).json();
        assert_eq!(three["choices"][i]["text"], single["choices"][0]["text"]);
        assert_eq!(three["choices"][i]["index"], i);
    }
    assert_eq!(three["usage"]["prompt_tokens"], 3);
    assert_ne!(three["choices"][0]["text"], three["choices"][1]["text"]);
    let chunks = server.post(COMPLETE, &with(with(drawn, "n", 3.into()), "stream", true.into())).chunks();
    for i in 0..3 {
        let of = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == i);
        let text: String = of.map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(three["choices"][i]["text"], text);
    }
    // Up to a stop string.
    let whole: Vec<char> = text.as_str().unwrap().chars().collect();
    let stop: String = whole[3..5].iter().collect();
    let answer = server.post(COMPLETE, &with(body, "stop", json!(["never", stop]))).json();
    let at = text.as_str().unwrap().find(&stop).unwrap();
    assert_eq!(answer["choices"][0]["text"], text.as_str().unwrap()[..at]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// Of unit length, as the references on the CPU have them.
fn hidden(tokens: &[u32], pooling: Pooling) -> Vec<f64> {
    let weights = Weights::from_bytes("toy.gguf", Bytes::new(toy(None).write())).unwrap();
    let options = EngineOptions { backend: Backend::Cpu, ..EngineOptions::default() };
    let mut engine = Engine::load(&weights, &options, |_| ()).unwrap();
    let mut session = engine.session();
    session.push(tokens);
    let mut rows = vec![];
    engine.each_hidden(&mut session, 0, |_, row| rows.push(row.to_vec())).unwrap();
    assert_eq!(rows.len(), tokens.len());
    let rows = if pooling == Pooling::Last { &rows[rows.len() - 1..] } else { &rows[..] };
    let sum: Vec<f64> = (0..rows[0].len()).map(|i| rows.iter().map(|row| f64::from(row[i])).sum()).collect();
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    sum.iter().map(|x| x / length).collect()
}

#[test]
fn embeddings_are_pooled_hidden_states_of_unit_length() {
    for pooling in [Pooling::Mean, Pooling::Last] {
        let settings = ServerOptions { pooling, ..ServerOptions::default() };
        let server = Server::with(EngineOptions::default(), Limits::default(), settings);
        let text = "A text of more than a step's rows of results";
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        let running = server.open("POST", COMPLETE, "", &long(true).to_string());
        let ask = |input: Json| server.post("/v1/embeddings", &json!({ "model": "toy", "input": input })).json();
        let answer = ask(json!([text, "b"]));
        assert_eq!(answer["usage"]["prompt_tokens"], tokens.len() + 1, "{answer}");
        for (i, tokens) in [&tokens[..], &[98]].into_iter().enumerate() {
            let found: Vec<f64> =
                answer["data"][i]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            let expected = hidden(tokens, pooling);
            assert_eq!(found.len(), expected.len());
            // Keys and values are f16 in both.
            assert!(
                found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-3),
                "{pooling:?}: {found:?} {expected:?}"
            );
        }
        assert_eq!(ask(json!(tokens))["data"][0], answer["data"][0]);
        let body = json!({ "input": text, "encoding_format": "base64" });
        let encoded = server.post("/v1/embeddings", &body).json();
        // 64 f32 in groups of three bytes.
        assert_eq!(encoded["data"][0]["embedding"].as_str().unwrap().len(), 4 * (64_usize * 4).div_ceil(3));
        drop(running);
        assert_eq!(server.idle(), 0.0);
        for (field, value) in [("input", json!([])), ("encoding_format", json!("hex")), ("dimensions", json!(3))] {
            let reply = server.post("/v1/embeddings", &with(body.clone(), field, value));
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)));
        }
    }
}

fn schema(schema: Json) -> Json {
    json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema, "strict": true } })
}

#[test]
fn answers_follow_a_schema_whole_and_streamed_beside_free_ones() {
    let server = Server::new();
    let format = schema(json!({
        "type": "object",
        "properties": { "size": { "enum": ["small", "large"] }, "n": { "type": "integer", "minimum": 10, "maximum": 99 } },
        "required": ["size", "n"],
        "additionalProperties": false,
    }));
    for seed in 0..4 {
        let body =
            with(with(with(hello(), "seed", seed.into()), "max_tokens", 120.into()), "response_format", format.clone());
        let choice = server.post(CHAT, &with(body.clone(), "n", 2.into())).json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let text = choice["message"]["content"].as_str().unwrap();
        let json: Json = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(
            ["small", "large"].contains(&json["size"].as_str().unwrap())
                && (10..100).contains(&json["n"].as_i64().unwrap())
        );
        let streamed = server.post(CHAT, &with(body, "stream", true.into())).chunks();
        let pieces = streamed.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(pieces.collect::<String>(), text);
    }
    let body = json!({ "prompt": "ab", "max_tokens": 9, "guided_regex": "[0-9]{3}", "ignore_eos": true });
    let answer = server.post(COMPLETE, &body).json();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()), "{answer}");
    assert_eq!(server.idle(), 0.0);
}

#[test]
fn what_is_wrong_or_unsupported_is_refused_and_named() {
    let server = Server::new();
    let function = |name: Json| json!([{ "type": "function", "function": { "name": name } }]);
    let chat = [
        ("messages", json!(null), "messages"),
        ("messages", json!([]), "messages"),
        ("messages", json!("hi"), "messages"),
        ("messages", json!(["hi"]), "messages[0]"),
        ("messages", json!([{ "role": "user", "content": "a" }, { "role": 5 }]), "messages[1]"),
        ("messages", json!([{ "role": "user", "content": 5 }]), "messages[0]"),
        ("messages", json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages"),
        ("messages", json!([{ "role": "user", "content": "x".repeat(CONTEXT) }]), "messages"),
        ("tools", json!({}), "tools"),
        ("tools", json!([{ "type": "web_search" }]), "tools[0].type"),
        ("tools", function(json!(7)), "tools[0].function.name"),
        // The template of the toy says nothing of tools.
        ("tools", function(json!("f")), "tools"),
        ("tool_choice", json!("required"), "tool_choice"),
        ("parallel_tool_calls", json!(false), "parallel_tool_calls"),
        ("tool_choice", json!({ "type": "function", "function": { "name": "f" } }), "tool_choice"),
        ("tool_choice", json!(7), "tool_choice"),
        ("response_format", json!("json"), "response_format"),
        ("response_format", json!({ "type": "xml" }), "response_format.type"),
        ("response_format", json!({ "type": "json_schema" }), "response_format.json_schema"),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "name": "a" } }),
            "response_format.json_schema.schema",
        ),
        ("response_format", schema(json!({ "type": "nonsense" })), "response_format"),
        ("response_format", schema(json!({ "type": "array", "uniqueItems": true })), "response_format"),
        ("response_format", schema(json!(5)), "response_format"),
        ("logprobs", json!(1), "logprobs"),
        ("top_logprobs", json!(3), "top_logprobs"),
        ("top_logprobs", json!(21), "top_logprobs"),
        ("max_completion_tokens", json!(3), "max_tokens"),
        ("audio", json!({}), "audio"),
        ("no_such_field", json!(1), "no_such_field"),
    ];
    let either = [
        ("model", json!("other"), "model"),
        ("model", json!(3), "model"),
        ("n", json!(0), "n"),
        ("n", json!(17), "n"),
        ("max_tokens", json!(0), "max_tokens"),
        ("max_tokens", json!(-1), "max_tokens"),
        ("max_tokens", json!(1.5), "max_tokens"),
        ("max_tokens", json!("many"), "max_tokens"),
        ("temperature", json!(2.1), "temperature"),
        ("temperature", json!(-0.1), "temperature"),
        ("temperature", json!("hot"), "temperature"),
        ("top_p", json!(1.5), "top_p"),
        ("top_k", json!(-2), "top_k"),
        ("seed", json!("x"), "seed"),
        ("stop", json!(""), "stop"),
        ("stop", json!([1]), "stop"),
        ("stop", json!(vec!["a"; 17]), "stop"),
        ("stream", json!("yes"), "stream"),
        ("stream_options", json!({ "include_usage": true }), "stream_options"),
        ("frequency_penalty", json!(2.5), "frequency_penalty"),
        ("presence_penalty", json!("much"), "presence_penalty"),
        ("logit_bias", json!({ "5": 101 }), "logit_bias"),
        ("logit_bias", json!({ "a": 1 }), "logit_bias"),
        ("logit_bias", json!({ "999999": 1 }), "logit_bias"),
        ("logit_bias", json!([1]), "logit_bias"),
        (
            "logit_bias",
            (0..301).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into(),
            "logit_bias",
        ),
        ("guided_regex", json!("("), "guided_regex"),
        ("guided_regex", json!(5), "guided_regex"),
        ("guided_grammar", json!("start: nothing"), "guided_grammar"),
        ("guided_json", json!([]), "guided_json"),
        ("min_p", json!(-0.5), "min_p"),
        ("typical_p", json!(1.5), "typical_p"),
        ("repetition_penalty", json!(0), "repetition_penalty"),
        ("repeat_last_n", json!(-2), "repeat_last_n"),
        ("dry_multiplier", json!(-1), "dry_multiplier"),
        ("dry_base", json!(0.5), "dry_base"),
        ("dry_allowed_length", json!(-1), "dry_allowed_length"),
        ("dry_penalty_last_n", json!(1.5), "dry_penalty_last_n"),
        ("dry_sequence_breakers", json!([""]), "dry_sequence_breakers"),
        ("user", json!(5), "user"),
        ("metadata", json!(5), "metadata"),
    ];
    let completion = [
        ("prompt", json!(null), "prompt"),
        ("prompt", json!([]), "prompt"),
        ("prompt", json!(5), "prompt"),
        ("prompt", json!([1, "a"]), "prompt"),
        ("prompt", json!([-1]), "prompt"),
        ("prompt", json!([5000]), "prompt"),
        ("prompt", json!(vec![1; CONTEXT + 1]), "prompt"),
        ("best_of", json!(2), "best_of"),
        ("echo", json!(true), "echo"),
        ("suffix", json!("x"), "suffix"),
        ("logprobs", json!(true), "logprobs"),
        ("logprobs", json!(21), "logprobs"),
    ];
    let text = json!({ "prompt": "a", "max_tokens": 3 });
    let chats = chat.iter().chain(&either).map(|case| (CHAT, hello(), case));
    let completions = completion.iter().chain(&either).map(|case| (COMPLETE, text.clone(), case));
    for (path, body, (field, value, param)) in chats.chain(completions) {
        let reply = server.post(path, &with(body, field, value.clone()));
        let expected = if *param == "model" && value.is_string() { 404 } else { 400 };
        assert_eq!(reply.status, expected, "{field}: {value}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], *param, "{field}: {value}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    for body in ["", "{", "[]", "5", "{\"messages\": \u{0}}", &"[".repeat(10_000)] {
        let reply = server.send("POST", CHAT, "", body);
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")), "{body}");
    }
    for (method, path, status) in [("GET", "/nothing", 404), ("GET", CHAT, 405), ("GET", "/v1/models/other", 404)] {
        let reply = server.send(method, path, "", "");
        assert_eq!(reply.status, status);
        assert!(reply.json()["error"]["message"].is_string());
    }
    // Fields that change nothing, as clients send them.
    let neutral = json!({
        "n": 1, "temperature": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "logprobs": false,
        "response_format": { "type": "text" }, "tool_choice": "none", "tools": function(json!("f")), "stop": null, "user": "me",
        "store": false, "service_tier": "auto", "parallel_tool_calls": true, "metadata": { "a": "b" }, "stream": false,
    });
    let mut body = hello();
    body.as_object_mut().unwrap().extend(neutral.as_object().unwrap().clone());
    assert_eq!(server.post(CHAT, &body).status, 200);
    assert_eq!(server.idle(), 0.0);
}

#[test]
fn logprobs_come_with_each_token_whole_and_streamed() {
    let server = Server::new();
    let extend = |mut body: Json, fields: Json| {
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let settings = json!({ "max_tokens": 9, "temperature": 1.2, "seed": 4, "ignore_eos": true });
    let body = extend(extend(hello(), settings.clone()), json!({ "logprobs": true, "top_logprobs": 3 }));
    let choice = server.post(CHAT, &body).json()["choices"][0].clone();
    let all = choice["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(all.len(), 9);
    for one in &all {
        let top = one["top_logprobs"].as_array().unwrap();
        let of = |json: &Json| json["logprob"].as_f64().unwrap();
        assert!(top.len() == 3 && top.windows(2).all(|pair| of(&pair[0]) >= of(&pair[1])), "{one}");
        assert!(of(one) <= of(&top[0]) && of(&top[0]) <= 0.0 && top.iter().map(|t| of(t).exp()).sum::<f64>() <= 1.0001);
        assert!(one["bytes"].is_array() && one["token"].is_string());
    }
    let bytes = all.iter().flat_map(|one| one["bytes"].as_array().unwrap()).map(|byte| byte.as_u64().unwrap() as u8);
    let text = String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned();
    assert!(text.ends_with(choice["message"]["content"].as_str().unwrap()), "{text}: {choice}");
    let streamed = server.post(CHAT, &with(body.clone(), "stream", true.into())).chunks();
    let streamed = streamed.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(streamed.cloned().collect::<Vec<_>>(), all);
    // Without alternatives, and not at all.
    let few = server.post(CHAT, &with(body.clone(), "top_logprobs", json!(null))).json();
    assert_eq!(few["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    let none = server.post(CHAT, &extend(hello(), settings.clone())).json();
    assert_eq!(none["choices"][0]["logprobs"], Json::Null);

    let body = extend(json!({ "prompt": "ab", "logprobs": 2 }), settings);
    let logprobs = server.post(COMPLETE, &body).json()["choices"][0]["logprobs"].clone();
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let streamed = server.post(COMPLETE, &with(body.clone(), "stream", true.into())).chunks();
        let streamed = streamed.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][field].as_array()).flatten();
        let streamed: Vec<_> = streamed.cloned().collect();
        assert_eq!(json!(streamed), logprobs[field], "{field}");
        assert_eq!(streamed.len(), 9, "{field}");
    }
    assert!(logprobs["top_logprobs"][0].as_object().unwrap().len() <= 2);
}

#[test]
fn biases_and_penalties_change_what_is_drawn() {
    let server = Server::new();
    let ask = |fields: Json| {
        let mut body =
            json!({ "prompt": "abcabc", "max_tokens": 24, "temperature": 0, "ignore_eos": true, "logprobs": 0 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = server.post(COMPLETE, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["choices"][0]["logprobs"]["tokens"].as_array().unwrap().clone()
    };
    let plain = ask(json!({}));
    assert_eq!(plain, ask(json!({ "min_p": 0.5, "typical_p": 0.5 })), "the likeliest is kept or greedy");
    let forced = ask(json!({ "logit_bias": { "98": 100 } }));
    assert!(forced.iter().all(|token| *token == forced[0]), "{forced:?}");
    let several = |tokens: &[Json]| tokens.iter().map(Json::to_string).collect::<std::collections::HashSet<_>>().len();
    let penalized =
        ask(json!({ "frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 2, "repeat_last_n": -1 }));
    assert!(several(&penalized) > several(&plain), "{penalized:?}, {plain:?}");
    let dry = ask(json!({ "logit_bias": { "98": 20 }, "dry_multiplier": 2, "dry_sequence_breakers": ["\n"] }));
    assert!(dry[..3].iter().all(|token| *token == forced[0]) && several(&dry) > 1, "{dry:?}");
}

#[test]
fn who_has_no_key_or_too_large_a_body_is_refused() {
    let settings = ServerOptions { api_key: Some("secret".into()), body: 4096, ..ServerOptions::default() };
    let server = Server::with(EngineOptions::default(), Limits::default(), settings);
    let ask = |headers: &str, body: &str| server.send("POST", CHAT, headers, body);
    let body = hello().to_string();
    for headers in ["", "authorization: Bearer wrong\r\n", "authorization: secret\r\n", "authorization: Bearer \r\n"] {
        let reply = ask(headers, &body);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    }
    let key = "authorization: Bearer secret\r\n";
    assert_eq!(ask(key, &body).status, 200);
    let large = with(hello(), "user", "x".repeat(4096).into()).to_string();
    assert_eq!(ask(key, &large).status, 413);
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.send("GET", "/v1/models", key, "").json()["data"][0]["id"], "toy");
    // Without secrets.
    assert_eq!((server.get("/health").status, server.get("/metrics").status), (200, 200));
    let page = server.get("/");
    assert!(page.body.contains("<!doctype html>") && page.headers.contains("text/html"));
    assert!(!page.headers.contains("access-control"));
}

#[test]
fn answers_that_are_guessed_are_the_same_and_counted() {
    let speculation = Some(Speculation { lookup_min: 1, ..Speculation::default() });
    let server = |speculation| {
        let settings = ServerOptions { speculation, ..ServerOptions::default() };
        Server::with(EngineOptions::default(), Limits::default(), settings)
    };
    let request = json!({ "prompt": "abc abc abc abc abc", "ignore_eos": true, "max_tokens": 100, "temperature": 0 });
    let [(without, none), (with, some)] = [None, speculation].map(|speculation| {
        let server = server(speculation);
        let answer = server.post("/v1/completions", &request).json();
        let tokens = |what: &str| server.measure(&format!("spec_decode_num_{what}_total"));
        (answer["choices"][0]["text"].clone(), ["drafts", "draft_tokens", "accepted_tokens"].map(tokens))
    });
    assert!(without == with && without.as_str().is_some_and(|text| !text.is_empty()));
    assert_eq!(none, [0.0; 3]);
    assert!(some[0] > 0.0 && some[1] > some[0] && some[2] <= some[1], "{some:?}");
}

#[test]
fn other_pages_may_ask_only_where_that_is_wanted() {
    let settings = ServerOptions { cors: Some("https://example.org".into()), ..ServerOptions::default() };
    let server = Server::with(EngineOptions::default(), Limits::default(), settings);
    for (method, status) in [("OPTIONS", 204), ("POST", 200)] {
        let reply = server.send(method, CHAT, "origin: https://example.org\r\n", &hello().to_string());
        assert_eq!(reply.status, status);
        assert!(reply.headers.contains("access-control-allow-origin: https://example.org"), "{}", reply.headers);
    }
}

/// Goes on as long as the context.
fn long(stream: bool) -> Json {
    json!({ "prompt": "abc", "ignore_eos": true, "stream": stream })
}

#[test]
fn a_vanished_client_frees_its_pages() {
    let server = Server::new();
    for stream in [true, false] {
        let mut connection = server.open("POST", COMPLETE, "", &long(stream).to_string());
        let began = Instant::now();
        while server.measure("num_requests_running") == 0.0 {
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        if stream {
            connection.read_exact(&mut [0; 20]).unwrap();
        }
        let drawn = server.measure("generation_tokens_total");
        drop(connection);
        assert_eq!(server.idle(), 0.0);
        assert!(server.measure("generation_tokens_total") - drawn < CONTEXT as f64 - 20.0, "it went on");
    }
    let text = server.get("/metrics").body;
    assert!(text.contains("vllm:request_success_total{model_name=\"toy\",finished_reason=\"abort\"} 2"), "{text}");
}

#[test]
fn when_too_many_wait_others_are_told_to_come_again() {
    let limits = Limits { waiting: 1, ..Limits::default() };
    let server = Server::with(EngineOptions::default(), limits, ServerOptions::default());
    let body = with(long(false), "max_tokens", 150.into()).to_string();
    let connections: Vec<_> = (0..40).map(|_| server.open("POST", COMPLETE, "", &body)).collect();
    let replies = connections.into_iter().map(|mut connection| {
        let mut bytes = vec![];
        connection.read_to_end(&mut bytes).unwrap();
        Reply::parse(&bytes)
    });
    let (answered, refused): (Vec<_>, Vec<_>) = replies.partition(|reply| reply.status == 200);
    assert!(!answered.is_empty() && !refused.is_empty(), "{} answered, {} refused", answered.len(), refused.len());
    for reply in refused {
        assert_eq!(reply.status, 503, "{}", reply.body);
        assert!(reply.headers.contains("retry-after: 1"), "{}", reply.headers);
        assert_eq!(reply.json()["error"]["type"], "server_error");
    }
}

#[test]
fn what_was_asked_before_the_end_is_answered() {
    let mut server = Server::new();
    let mut connection = server.open("POST", COMPLETE, "", &with(long(true), "max_tokens", 150.into()).to_string());
    connection.read_exact(&mut [0; 12]).unwrap();
    drop(server.end.take());
    let mut rest = vec![];
    connection.read_to_end(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("[DONE]"));
    server.threads.drain(..).for_each(|thread| thread.join().unwrap());
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

const CLIENTS: usize = 8;
const REQUESTS: usize = 1000;

/// Bytes the process may grow by between the middle and the end.
const RESIDENT_SLACK: usize = 4 << 20;

/// The `i`-th request and, where it is a good one, of which of the different ones it is.
fn mixed(i: usize) -> (Json, Option<usize>) {
    let which = i % 40;
    let mut random = Random(which as u64);
    let n = 5 + random.below(60);
    let own: String = (0..n).map(|_| (b'a' + random.below(26) as u8) as char).collect();
    let shared = "a prefix that a fifth of all requests begin with, word for word";
    let prompt = if which.is_multiple_of(5) { format!("{shared} {own}") } else { own };
    let max_tokens = 1 + random.below(24);
    let body = json!({
        "prompt": prompt, "max_tokens": max_tokens, "seed": which, "temperature": (which % 3) as f64 / 2.0, "ignore_eos": true,
        "stream": i.is_multiple_of(2), "user": format!("client {}", i % 7),
    });
    match random.next() as usize % 7 + i / 40 % 3 {
        0 => (with(body, "prompt", "x".repeat(2 * CONTEXT).into()), None),
        1 => (with(body, "temperature", "hot".into()), None),
        _ => (body, Some(which)),
    }
}

fn text_of(reply: &Reply, stream: bool) -> String {
    match stream {
        true => reply.chunks().iter().map(|c| c["choices"][0]["text"].as_str().unwrap().to_string()).collect(),
        false => reply.json()["choices"][0]["text"].as_str().unwrap().into(),
    }
}

#[test]
fn a_thousand_mixed_requests_are_answered_as_if_alone_and_leave_nothing_behind() {
    let name = "server::a_thousand_mixed_requests_are_answered_as_if_alone_and_leave_nothing_behind";
    if !is_alone(name) {
        return;
    }
    // Few pages, so that requests lose theirs to others.
    let options = EngineOptions { sequences: 6, pages: 22, ..EngineOptions::default() };
    let server = Server::with(options, Limits::default(), ServerOptions::default());
    let alone: Vec<String> = (0..40)
        .map(|which| {
            let (body, _) = (0..).map(|round| mixed(which + 40 * round)).find(|(_, good)| good.is_some()).unwrap();
            text_of(&server.post(COMPLETE, &with(body, "stream", false.into())), false)
        })
        .collect();
    let run = |from: usize, to: usize| {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, alone) = (&server, &alone);
                scope.spawn(move || {
                    for i in (from..to).filter(|i| i % CLIENTS == client) {
                        let (body, good) = mixed(i);
                        let text = body.to_string();
                        match i % 10 {
                            // Goes away at once, or while it is answered.
                            3 => drop(server.open("POST", COMPLETE, "", &text)),
                            7 => drop(server.open("POST", COMPLETE, "", &text).read(&mut [0; 30])),
                            9 => assert_eq!(server.send("POST", COMPLETE, "", &text[..text.len() / 2]).status, 400),
                            _ => {
                                let reply = server.send("POST", COMPLETE, "", &text);
                                match good {
                                    None => assert_eq!(reply.status, 400, "{}", reply.body),
                                    Some(which) => {
                                        let stream = body["stream"] == true;
                                        assert_eq!(text_of(&reply, stream), alone[which], "request {i}");
                                    }
                                }
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(server.idle(), 0.0, "all pages are free");
    };
    run(0, REQUESTS / 2);
    let middle = resident();
    run(REQUESTS / 2, REQUESTS);
    let end = resident();
    println!(
        "resident {middle} bytes, then {end}; {}",
        server
            .get("/metrics")
            .body
            .lines()
            .filter(|l| l.starts_with("vllm") && !l.contains("bucket"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    assert!(end <= middle + RESIDENT_SLACK, "{middle} bytes grew to {end}");
    assert!(server.measure("num_preemptions_total") > 0.0 && server.measure("prefix_cache_hits_total") > 0.0);
    assert_eq!(server.measure("request_failure_total"), 0.0);
}

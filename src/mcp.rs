//! Tools of servers that speak the [Model Context Protocol](https://modelcontextprotocol.io), by
//! [rmcp](https://github.com/modelcontextprotocol/rust-sdk). Feature `mcp`.
//!
//! A server is a program that is started here and spoken to over its standard input and output. It may be wrong in any way: what it
//! may send is bounded, and so is the time it may take.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock, Implementation,
    PaginatedRequestParams, ProtocolVersion, ResourceContents, Tool,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RunningService};
use rmcp::transport::{TokioChildProcess, which_command};
use rmcp::{RoleClient, ServiceError};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::runtime::Runtime;

use crate::agent::Tools;
use crate::error::{Error, Result};

/// How a server is started.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct ServerCommand {
    /// What messages call it.
    #[serde(skip)]
    pub name: String,
    /// The program, looked for as a shell would.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables of its environment, beside those of this process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl ServerCommand {
    /// A command line, with quotes as in a shell; nothing in it is expanded.
    pub fn parse(line: &str) -> Result<Self> {
        let mut words = shlex::split(line).unwrap_or_default().into_iter();
        let command = words.next();
        let command = command.ok_or_else(|| Error::request("MCP server", "a command with closed quotes", line))?;
        Ok(Self { name: line.into(), command, args: words.collect(), env: BTreeMap::new() })
    }

    /// Those of a file as other programs have it: `{"mcpServers": {"NAME": {"command": …, "args": […], "env": {…}}}}`. Other
    /// fields are theirs, but for `"disabled": true`.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let wrong =
            |what: &str, expected: &str, found: &dyn ToString| Error::file(path, what, expected, found.to_string());
        let json: Json = serde_json::from_str(&text).map_err(|e| wrong("file", "JSON", &e))?;
        let expected = "an object of servers";
        let servers =
            json["mcpServers"].as_object().ok_or_else(|| wrong("mcpServers", expected, &json["mcpServers"]))?;
        let enabled = servers.iter().filter(|(_, server)| server["disabled"] != true);
        let read = |(name, server): (&String, &Json)| {
            let read = Self::deserialize(server);
            let expected = "command, args and env of a program that speaks over standard input and output";
            let command = read.map_err(|e| wrong(&format!("mcpServers.{name}"), expected, &e))?;
            Ok(Self { name: name.clone(), ..command })
        };
        enabled.map(read).collect()
    }
}

/// How long servers may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To start and to list their tools.
    pub start: Duration,
    /// To answer a call.
    pub call: Duration,
    /// Whether the user has broken off, asked for while a tool runs.
    pub interrupted: fn() -> bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { start: Duration::from_secs(60), call: Duration::from_secs(60), interrupted: || false }
    }
}

/// Tools of all servers together, at most, and bytes of their descriptions.
const TOOLS: usize = 128;
const DESCRIPTIONS: usize = 256 << 10;

/// Bytes that are kept of what a server writes to standard error.
const TAIL: usize = 4 << 10;

/// Letters of an error, and of the line that a server wrote about it.
const WORDS: usize = 500;

/// How often a call looks whether the user has broken off.
const TICK: Duration = Duration::from_millis(50);

/// How long servers may take to end before they are killed.
const END: Duration = Duration::from_secs(2);

/// Servers that run until this is dropped, and their tools. Not for async code: it waits.
pub struct Servers {
    servers: Vec<Server>,
    tools: Vec<Json>,
    /// For each tool its server, and its name there.
    places: Vec<(usize, String)>,
    limits: Limits,
    runtime: Runtime,
}

struct Server {
    client: RunningService<RoleClient, ClientConfig>,
    /// The end of what it wrote to standard error.
    errors: Arc<Mutex<Vec<u8>>>,
}

impl Servers {
    /// Starts servers and asks for their tools. Of two tools of one name the second is given another, with a number.
    pub fn start(commands: &[ServerCommand], limits: Limits) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|source| Error::Io { path: "MCP".into(), source })?;
        let mut started = Self { servers: Vec::new(), tools: Vec::new(), places: Vec::new(), limits, runtime };
        // All at once, and all of them are waited for: none is left behind where one fails.
        let starts: Vec<_> =
            commands.iter().map(|command| started.runtime.spawn(connect(command.clone(), limits.start))).collect();
        let ends: Vec<_> = starts.into_iter().map(|start| started.runtime.block_on(start)).collect();
        for (command, end) in commands.iter().zip(ends) {
            let panicked = |e: tokio::task::JoinError| Error::Mcp { server: command.name.clone(), why: e.to_string() };
            let (server, tools) = end.map_err(panicked)??;
            started.servers.push(server);
            tools.into_iter().for_each(|tool| started.add(tool));
        }
        let bytes: usize = started.tools.iter().map(|tool| tool.to_string().len()).sum();
        if started.tools.len() > TOOLS || bytes > DESCRIPTIONS {
            let expected = format!("at most {TOOLS}, described in {DESCRIPTIONS} bytes");
            let found = format!("{}, in {bytes} bytes", started.tools.len());
            return Err(Error::request("tools of MCP servers", expected, found));
        }
        Ok(started)
    }

    fn add(&mut self, tool: Tool) {
        let is_new = |name: &String| self.tools.iter().all(|tool| tool["function"]["name"] != name.as_str());
        let numbered = (2..).map(|n| format!("{}_{n}", tool.name));
        let name = std::iter::once(tool.name.to_string()).chain(numbered).find(is_new).unwrap_or_default();
        let description = tool.description.as_deref().unwrap_or_default();
        let function = json!({ "name": name, "description": description, "parameters": *tool.input_schema });
        self.tools.push(json!({ "type": "function", "function": function }));
        self.places.push((self.servers.len() - 1, tool.name.into_owned()));
    }
}

impl Tools for Servers {
    fn list(&self) -> &[Json] {
        &self.tools
    }

    fn call(&mut self, name: &str, arguments: Map<String, Json>) -> Result<String, String> {
        let at = self.tools.iter().position(|tool| tool["function"]["name"] == name);
        let (server, name) = at.map(|at| &self.places[at]).ok_or_else(|| format!("there is no tool {name}"))?;
        let server = &self.servers[*server];
        let call = server.client.call_tool(CallToolRequestParams::new(name.clone()).with_arguments(arguments));
        let Limits { call: limit, interrupted, .. } = self.limits;
        // A call that is dropped is cancelled at the server.
        let answer = self.runtime.block_on(async {
            tokio::select! {
                answer = tokio::time::timeout(limit, call) => answer.map_err(|_| format!("it took more than {limit:?}")),
                () = until(interrupted) => Err("the user broke it off".into()),
            }
        })?;
        match answer {
            Ok(result) => text_of(result),
            Err(ServiceError::McpError(e)) => Err(e.message.into_owned()),
            Err(e) => Err(with_last_words(&e.to_string(), &server.errors)),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let servers = std::mem::take(&mut self.servers);
        let ends: Vec<_> = servers
            .into_iter()
            .map(|mut server| {
                self.runtime.spawn(async move {
                    // One that does not end in time is killed when it is dropped.
                    let _ = server.client.close_with_timeout(END).await;
                })
            })
            .collect();
        ends.into_iter().for_each(|end| drop(self.runtime.block_on(end)));
    }
}

async fn until(ready: fn() -> bool) {
    while !ready() {
        tokio::time::sleep(TICK).await;
    }
}

/// Starts a server; its tools.
async fn connect(command: ServerCommand, limit: Duration) -> Result<(Server, Vec<Tool>)> {
    let ServerCommand { name, command, args, env } = command;
    let errors = Arc::default();
    let started = tokio::time::timeout(limit, async {
        let mut process = which_command(&command).map_err(|e| format!("{command} is not found: {e}"))?;
        process.args(args).envs(env).kill_on_drop(true);
        // What the terminal sends to this program, such as Ctrl-C, is not for the server.
        #[cfg(unix)]
        process.process_group(0);
        #[cfg(windows)]
        process.creation_flags(0x200);
        let (transport, stderr) =
            TokioChildProcess::builder(process).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        if let Some(stderr) = stderr {
            tokio::spawn(keep_tail(stderr, Arc::clone(&errors)));
        }
        let client = Implementation::new("farpast", env!("CARGO_PKG_VERSION"));
        let client = ClientConfig::new(ClientCapabilities::default(), client);
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::LATEST],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        };
        let client = client.serve_with_lifecycle(transport, lifecycle).await.map_err(|e| e.to_string())?;
        let tools = list(&client).await?;
        Ok((client, tools))
    });
    let started = started.await.unwrap_or_else(|_| Err(format!("it took more than {limit:?} to start")));
    match started {
        Ok((client, tools)) => Ok((Server { client, errors }, tools)),
        Err(why) => {
            // Its last words may still be on their way.
            tokio::time::sleep(TICK).await;
            Err(Error::Mcp { server: name, why: with_last_words(&why, &errors) })
        }
    }
}

async fn list(client: &RunningService<RoleClient, ClientConfig>) -> Result<Vec<Tool>, String> {
    let (mut tools, mut cursor) = (Vec::new(), None);
    loop {
        let mut page = PaginatedRequestParams::default();
        page.cursor = cursor;
        let page = client.list_tools(Some(page)).await.map_err(|e| e.to_string())?;
        let is_empty = page.tools.is_empty();
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if tools.len() > TOOLS {
            return Err(format!("it has more than {TOOLS} tools"));
        }
        if cursor.is_none() || is_empty {
            return Ok(tools);
        }
    }
}

async fn keep_tail(mut from: impl AsyncRead + Unpin, tail: Arc<Mutex<Vec<u8>>>) {
    let mut bytes = [0; TAIL];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&bytes[..n]);
        let surplus = tail.len().saturating_sub(TAIL);
        tail.drain(..surplus);
    }
}

/// What went wrong, and the last line that the server wrote to standard error.
fn with_last_words(why: &str, errors: &Mutex<Vec<u8>>) -> String {
    let short = |text: &str| text.trim().chars().take(WORDS).collect::<String>();
    let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
    match String::from_utf8_lossy(&errors).lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{}; its last words: {}", short(why), short(line)),
        None => short(why),
    }
}

/// What a model can read of a result.
fn text_of(result: CallToolResult) -> Result<String, String> {
    let block = |block: &ContentBlock| match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}, not shown]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a recording, {}, not played]", audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            _ => "[bytes, not shown]".into(),
        },
        ContentBlock::ResourceLink(link) => format!("[{}: {}]", link.name, link.uri),
        _ => "[something else, not shown]".into(),
    };
    let blocks: Vec<_> = result.content.iter().map(block).collect();
    let text = match (blocks.is_empty(), &result.structured_content) {
        (true, Some(structured)) => structured.to_string(),
        _ => blocks.join("\n"),
    };
    if result.is_error == Some(true) { Err(text) } else { Ok(text) }
}

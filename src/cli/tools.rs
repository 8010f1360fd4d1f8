//! Tools of MCP servers, run when the user says so.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rustyline::{Behavior, Config, DefaultEditor};
use serde_json::{Map, Value as Json};

use super::interrupt::interrupted;
use crate::agent::{self, Tools};
use crate::error::{Error, Result};
use crate::mcp::{Limits, ServerCommand, Servers};

/// Programs whose tools the model may call.
#[derive(Args)]
pub struct ToolArgs {
    /// Start this MCP server, such as 'npx -y some-server /folder', and let the model call its tools; several times for several
    #[arg(long, value_name = "COMMAND", value_parser = ServerCommand::parse)]
    mcp: Vec<ServerCommand>,
    /// The same, of all servers in a file as other programs have it: {"mcpServers": {"NAME": {"command", "args", "env"}}}
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,
    /// Run tools without asking
    #[arg(short, long)]
    yes: bool,
    /// Turns in which the model may call tools, for one answer
    #[arg(long, value_name = "COUNT", default_value_t = agent::Limits::default().rounds)]
    tool_rounds: usize,
    /// Seconds that a tool may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    tool_timeout: u64,
}

impl ToolArgs {
    /// Starts the servers. Their tools ask before they run, unless the user has said otherwise.
    pub fn start(&self) -> Result<Box<dyn Tools>> {
        let mut commands = self.mcp.clone();
        if let Some(file) = &self.mcp_config {
            commands.extend(ServerCommand::read(file)?);
        }
        if commands.is_empty() {
            return Ok(Box::new(()));
        }
        if !self.yes && !io::stdin().is_terminal() {
            let expected = "--yes, as nobody can be asked before they run";
            return Err(Error::request("tools without a terminal", expected, "none"));
        }
        let limits = Limits { call: Duration::from_secs(self.tool_timeout), interrupted, ..Limits::default() };
        let servers = Servers::start(&commands, limits)?;
        match self.yes {
            true => Ok(Box::new(servers)),
            false => Ok(Box::new(Asking { servers, allowed: BTreeSet::new() })),
        }
    }

    /// How far the model may go, with so many tokens a turn.
    pub fn limits(&self, tokens: Option<usize>) -> agent::Limits {
        agent::Limits { rounds: self.tool_rounds, tokens, ..agent::Limits::default() }
    }
}

/// Tools that ask before they run.
struct Asking {
    servers: Servers,
    /// Those that need not be asked about again.
    allowed: BTreeSet<String>,
}

impl Tools for Asking {
    fn list(&self) -> &[Json] {
        self.servers.list()
    }

    fn call(&mut self, name: &str, arguments: Map<String, Json>) -> Result<String, String> {
        if !self.allowed.contains(name) {
            let terminal = Config::builder().behavior(Behavior::PreferTerm).build();
            let mut editor = DefaultEditor::with_config(terminal).map_err(|e| e.to_string())?;
            match editor.readline("Run it? y: yes, a: yes and always, n: no > ").as_deref().map(str::trim) {
                Ok("y" | "Y" | "yes") => {}
                Ok("a" | "A" | "always") => _ = self.allowed.insert(name.into()),
                _ => return Err("the user does not want this tool to run".into()),
            }
        }
        self.servers.call(name, arguments)
    }
}

//! `chat`: a conversation in the terminal, or one answer.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustyline::error::ReadlineError;
use serde_json::Value as Json;

use super::drafts::DraftArgs;
use super::input::{SamplingArgs, TextArgs};
use super::interrupt::{Stoppable, exit_code};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{Stream, note, one_line, print};
use super::prompt_cache::PromptCacheArgs;
#[cfg(feature = "mcp")]
use super::tools::ToolArgs;
use crate::agent::{self, Event, Tools};
use crate::chat::{Answer, Conversation, End};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fetch;
use crate::speculation::DraftCounts;
use crate::text::Part;

/// Chat with a model; with a text, answer that and exit
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// What the model is told before the conversation. Also -sys
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Exit after the first answer. Also -st
    #[arg(long)]
    single_turn: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[cfg(feature = "mcp")]
    #[command(flatten)]
    tools: ToolArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    drafts: DraftArgs,
    #[command(flatten)]
    cache: PromptCacheArgs,
}

/// Without `-c` a conversation sees this many tokens, unless the model was trained for fewer.
pub const CONTEXT: usize = 4096;

const HELP: &str = "\
/help     this
/reset    forget the conversation
/stats    speed and memory
/tools    what the model may call
/quit     leave; so does Ctrl-D
//TEXT    send /TEXT
A line that ends with \\ goes on in the next. Ctrl-C stops an answer.";

pub fn run(options: &Options) -> Result<ExitCode> {
    let text = options.text.read_prompt()?;
    if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(Error::request("message", "some text", "none"));
    }
    #[cfg(feature = "mcp")]
    let (mut tools, limits) = (options.tools.start()?, options.tools.limits(options.sampling.limit()));
    #[cfg(not(feature = "mcp"))]
    let (mut tools, limits) = (Box::new(()), agent::Limits { tokens: options.sampling.limit(), ..Default::default() });
    let weights = options.model.open()?;
    let mut engine = options.engine.load(&weights, CONTEXT)?;
    let empty = options.engine.session(&engine)?;
    let session = options.cache.restore(&mut engine, empty)?;
    let mut conversation = Conversation::new(session, &weights, options.system_prompt.as_deref())?;
    conversation.set_tools(tools.list())?;
    describe(&weights, &engine, conversation.tokenizer().warnings());
    drop(weights);
    if let Some(draft) = options.drafts.open()? {
        draft.guess_for(&mut engine, conversation.tokenizer(), |weights| {
            options.engine.dense().load(weights, CONTEXT)
        })?;
    }
    conversation.set_speculation(options.drafts.speculation());
    let sampling = options.sampling.sampling(conversation.tokenizer());
    conversation.set_sampling(sampling);
    let constraint = options.sampling.constraint(conversation.tokenizer(), engine.config().vocab)?;
    conversation.constrain(constraint);
    let code = match text {
        Some(text) => {
            say(&mut engine, &mut conversation, &mut *tools, &text, &limits)?;
            exit_code()
        }
        None => converse(&mut engine, &mut conversation, &mut *tools, &limits, options.single_turn)?,
    };
    options.cache.save(&engine, conversation.session(), 0)?;
    Ok(code)
}

fn converse(
    engine: &mut Engine,
    conversation: &mut Conversation,
    tools: &mut dyn Tools,
    limits: &agent::Limits,
    single_turn: bool,
) -> Result<ExitCode> {
    let mut editor = rustyline::DefaultEditor::new().map_err(terminal)?;
    let history = fetch::cache_folder().ok().map(|folder| folder.join("chat_history"));
    if let Some(history) = &history {
        // There is none on first use.
        let _ = editor.load_history(history);
    }
    note(format_args!("/help lists the commands."));
    while let Some(text) = read(&mut editor).map_err(terminal)? {
        if text.trim().is_empty() {
            continue;
        }
        // A history that cannot be kept is no reason not to chat.
        let _ = editor.add_history_entry(&text);
        if let Some(history) = &history {
            let _ = history.parent().map(std::fs::create_dir_all);
            let _ = editor.save_history(history);
        }
        let text = match text.strip_prefix('/') {
            None => text.as_str(),
            Some(rest) if rest.starts_with('/') => rest,
            Some(command) => {
                match command.trim() {
                    "help" => print(&format!("{HELP}\n"))?,
                    "reset" => {
                        conversation.reset();
                        print("The conversation is forgotten.\n")?;
                    }
                    "stats" => print(&stats(engine, conversation))?,
                    "tools" => print(&list(tools))?,
                    "quit" | "exit" => break,
                    other => {
                        let other = one_line(other);
                        note(format_args!(
                            "There is no command /{other}; /help lists them. //{other} sends it as text."
                        ));
                    }
                }
                continue;
            }
        };
        match say(engine, conversation, tools, text, limits) {
            Ok(_) if single_turn => break,
            Ok(_) => {}
            // The conversation is as before, so another message may do.
            Err(e @ (Error::Request { .. } | Error::Template(_) | Error::Chat(_) | Error::Tokenizer(_))) => {
                note(format_args!("error: {}", one_line(&e.to_string())));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A message, which backslashes at line ends continue; `None` at the end of the input. Ctrl-C discards what was typed.
fn read(editor: &mut rustyline::DefaultEditor) -> rustyline::Result<Option<String>> {
    let mut text = String::new();
    loop {
        match editor.readline(if text.is_empty() { "> " } else { ". " }) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(line) => {
                    text.push_str(line);
                    text.push('\n');
                }
                None => return Ok(Some(text + &line)),
            },
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

fn terminal(e: ReadlineError) -> Error {
    Error::Io { path: "terminal".into(), source: std::io::Error::other(e) }
}

/// Sends `text` and prints the answer, and nothing else, as it comes. What tools do is noted beside it.
fn say(
    engine: &mut Engine,
    conversation: &mut Conversation,
    tools: &mut dyn Tools,
    text: &str,
    limits: &agent::Limits,
) -> Result<Answer> {
    let mut stream = Stream::new();
    let stoppable = Stoppable::new();
    let mut ends_line = true;
    let answer = agent::ask(engine, conversation, tools, text, limits, |event| match event {
        Event::Part(Part::Text(text)) => {
            ends_line = text.chars().next_back().map_or(ends_line, |last| last == '\n');
            stream.write(text)
        }
        Event::Part(_) => stream.write(""),
        Event::Call(call) => {
            let flow = stream.write(if ends_line { "" } else { "\n" });
            ends_line = true;
            note(format_args!("[{} {}]", one_line(&call.name), one_line(&call.arguments)));
            flow
        }
        Event::Result(_, result) => {
            let line: String = one_line(result).chars().take(RESULT).collect();
            note(format_args!("[→ {line}]"));
            stream.write("")
        }
    });
    drop(stoppable);
    let answer = answer?;
    stream.finish(true)?;
    match answer.end {
        End::Interrupted => note(format_args!("[stopped]")),
        End::Context => note(format_args!("[the context of {} tokens is full]", engine.capacity().context)),
        End::Rounds => note(format_args!("[the model wants more tools after {} rounds]", limits.rounds)),
        End::Limit | End::Stop => {}
    }
    if answer.dropped > 0 {
        note(format_args!("[the context was full: the {} oldest messages are forgotten]", answer.dropped));
    }
    Ok(answer)
}

/// Letters of a tool's result that are shown.
const RESULT: usize = 200;

fn list(tools: &dyn Tools) -> String {
    let line = |tool: &Json| {
        let text = |field: &str| one_line(tool["function"][field].as_str().unwrap_or_default());
        format!("{}  {}\n", text("name"), text("description"))
    };
    match tools.list() {
        [] => "There are none.\n".into(),
        tools => tools.iter().map(line).collect(),
    }
}

fn stats(engine: &Engine, conversation: &Conversation) -> String {
    let t = conversation.totals();
    let speed = |n: usize, time: Duration| if n == 0 { 0.0 } else { n as f64 / time.as_secs_f64() };
    let messages = conversation.messages().len();
    let context = engine.capacity().context;
    let DraftCounts { drafted, accepted, .. } = engine.draft_counts();
    format!(
        "prefill  {} tokens, {:.1} tokens/s; {} reused\n\
         again    {} tokens that the template wrote otherwise, or after a full context\n\
         decode   {} tokens, {:.1} tokens/s\n\
         drafts   {accepted} of {drafted} tokens accepted\n\
         context  {} of {context} tokens in {messages} messages\n\
         pages    {} of {} free\n",
        t.prefilled,
        speed(t.prefilled, t.prefill),
        t.reused,
        t.discarded,
        t.decoded,
        speed(t.decoded, t.decode),
        conversation.tokens().min(context),
        engine.free_pages(),
        engine.capacity().pages,
    )
}

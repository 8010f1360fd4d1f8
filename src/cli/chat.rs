//! `chat`: a conversation in the terminal, or one answer.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustyline::error::ReadlineError;

use super::drafts::DraftArgs;
use super::input::{SamplingArgs, TextArgs};
use super::interrupt::{Stoppable, exit_code};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{Stream, note, one_line, print};
use super::prompt_cache::PromptCacheArgs;
use crate::chat::{Answer, Conversation, End};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::fetch;
use crate::speculation::DraftCounts;

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
/quit     leave; so does Ctrl-D
//TEXT    send /TEXT
A line that ends with \\ goes on in the next. Ctrl-C stops an answer.";

pub fn run(options: &Options) -> Result<ExitCode> {
    let text = options.text.read_prompt()?;
    if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(Error::request("message", "some text", "none"));
    }
    let weights = options.model.open()?;
    let mut engine = options.engine.load(&weights, CONTEXT)?;
    let empty = options.engine.session(&engine)?;
    let session = options.cache.restore(&mut engine, empty)?;
    let mut conversation = Conversation::new(session, &weights, options.system_prompt.as_deref())?;
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
            say(&mut engine, &mut conversation, &text, options)?;
            exit_code()
        }
        None => converse(&mut engine, &mut conversation, options)?,
    };
    options.cache.save(&engine, conversation.session(), 0)?;
    Ok(code)
}

fn converse(engine: &mut Engine, conversation: &mut Conversation, options: &Options) -> Result<ExitCode> {
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
        match say(engine, conversation, text, options) {
            Ok(_) if options.single_turn => break,
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

/// Sends `text` and prints the answer, and nothing else, as it comes.
fn say(engine: &mut Engine, conversation: &mut Conversation, text: &str, options: &Options) -> Result<Answer> {
    let mut stream = Stream::new();
    let stoppable = Stoppable::new();
    let answer = conversation.say(engine, text, options.sampling.limit(), |piece| stream.write(piece));
    drop(stoppable);
    let answer = answer?;
    stream.finish(true)?;
    match answer.end {
        End::Interrupted => note(format_args!("[stopped]")),
        End::Context => note(format_args!("[the context of {} tokens is full]", engine.capacity().context)),
        End::Limit | End::Stop => {}
    }
    if answer.dropped > 0 {
        note(format_args!("[the context was full: the {} oldest messages are forgotten]", answer.dropped));
    }
    Ok(answer)
}

fn stats(engine: &Engine, conversation: &Conversation) -> String {
    let t = conversation.totals();
    let speed = |n: usize, time: Duration| if n == 0 { 0.0 } else { n as f64 / time.as_secs_f64() };
    let messages = conversation.messages().len();
    let context = engine.capacity().context;
    let DraftCounts { drafted, accepted, .. } = engine.draft_counts();
    format!(
        "prefill  {} tokens, {:.1} tokens/s; {} reused\n\
         decode   {} tokens, {:.1} tokens/s\n\
         drafts   {accepted} of {drafted} tokens accepted\n\
         context  {} of {context} tokens in {messages} messages\n\
         pages    {} of {} free\n",
        t.prefilled,
        speed(t.prefilled, t.prefill),
        t.reused,
        t.decoded,
        speed(t.decoded, t.decode),
        conversation.tokens().min(context),
        engine.free_pages(),
        engine.capacity().pages,
    )
}

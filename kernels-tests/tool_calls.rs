//! Calls of tools in answers of every style, however the text is cut.

use farpast::text::{Part, ToolCalls, ToolStyle};

/// Text, and (name, arguments) of each call.
type Taken = (String, Vec<(String, String)>);

fn take(style: ToolStyle, text: &str, cut: usize) -> Taken {
    let mut calls = ToolCalls::new(style, vec!["weather".into(), "time".into()]);
    let letters: Vec<char> = text.chars().collect();
    let mut parts: Vec<Part> =
        letters.chunks(cut).flat_map(|piece| calls.push(&piece.iter().collect::<String>())).collect();
    parts.extend(calls.finish());
    let mut taken = (String::new(), vec![]);
    for part in parts {
        match part {
            Part::Text(text) => taken.0 += &text,
            Part::Call { name } => taken.1.push((name, String::new())),
            Part::Arguments(text) => taken.1.last_mut().unwrap().1 += &text,
        }
    }
    assert_eq!(calls.calls(), taken.1.len());
    taken
}

#[track_caller]
fn check(style: ToolStyle, text: &str, expected_text: &str, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string())).collect();
    for cut in [1, 2, 3, 7, 1000] {
        assert_eq!(take(style, text, cut), (expected_text.to_string(), expected.clone()), "in pieces of {cut}");
    }
}

#[test]
fn calls_of_hermes_and_qwen() {
    use ToolStyle::Hermes;
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\", \"at\": {\"h\": [1, 2]}}}\n</tool_call>";
    let arguments = "{\"city\": \"Köln\", \"at\": {\"h\": [1, 2]}}";
    check(Hermes, call, "", &[("weather", arguments)]);
    check(Hermes, &format!("Let me see.\n{call}"), "Let me see.", &[("weather", arguments)]);
    let two = format!("{call}\n<tool_call>{{\"arguments\": {{}}, \"name\": \"time\"}}</tool_call>");
    check(Hermes, &two, "", &[("weather", arguments), ("time", "{}")]);
    // Braces, quotes and markers within strings.
    let tricky = r#"{"q": "a } \" </tool_call> {", "b": "\\"}"#;
    let text = format!("<tool_call>{{\"name\": \"time\", \"arguments\": {tricky}}}</tool_call> done");
    check(Hermes, &text, " done", &[("time", tricky)]);
    // JSON within a string; no arguments at all; a tool that nobody named.
    let text = r#"<tool_call>{"name": "time", "arguments": "{\"a\": 1}"}</tool_call>"#;
    check(Hermes, text, "", &[("time", "{\"a\": 1}")]);
    check(Hermes, "<tool_call>{\"name\": \"time\"}</tool_call>", "", &[("time", "{}")]);
    check(Hermes, "<tool_call>{\"name\": \"x\", \"arguments\": {}}</tool_call>", "", &[("x", "{}")]);
}

#[test]
fn calls_of_mistral() {
    use ToolStyle::Mistral;
    let list = r#"[TOOL_CALLS] [{"name": "weather", "arguments": {"a": 1}}, {"name": "time", "arguments": {}}]"#;
    check(Mistral, list, "", &[("weather", "{\"a\": 1}"), ("time", "{}")]);
    check(Mistral, "[TOOL_CALLS]weather[ARGS]{\"a\": [1]}", "", &[("weather", "{\"a\": [1]}")]);
    let two = "Well. [TOOL_CALLS]weather{\"a\": 1}[TOOL_CALLS]time[ARGS]{}";
    check(Mistral, two, "Well.", &[("weather", "{\"a\": 1}"), ("time", "{}")]);
}

#[test]
fn calls_of_llama_and_of_plain_json() {
    use ToolStyle::{Json, Llama3};
    let call = r#"{"name": "weather", "parameters": {"city": "Rome"}}"#;
    check(Llama3, call, "", &[("weather", "{\"city\": \"Rome\"}")]);
    check(Llama3, &format!("<|python_tag|>{call}; {call}"), "", &[("weather", "{\"city\": \"Rome\"}"); 2]);
    // Some that were taught markers leave them out.
    for style in [Json, Llama3, ToolStyle::Hermes, ToolStyle::Mistral] {
        check(style, &format!("\n {call}"), "", &[("weather", "{\"city\": \"Rome\"}")]);
    }
    let list = r#"[{"name": "time", "arguments": {}}, {"name": "weather", "arguments": {"x": null}}]"#;
    check(Json, list, "", &[("time", "{}"), ("weather", "{\"x\": null}")]);
}

#[test]
fn calls_in_fences_of_markdown() {
    let call = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
    let one = ("weather", "{\"city\": \"Rome\"}");
    for style in [ToolStyle::Json, ToolStyle::Llama3, ToolStyle::Hermes, ToolStyle::Mistral] {
        check(style, &format!("```json\n{call}\n```"), "", &[one]);
        check(style, &format!("```\n{call}\n```\n"), "", &[one]);
        check(style, &format!("Let me see:\n\n```json\n[{call}, {call}]\n```\nSoon."), "Let me see:\nSoon.", &[one; 2]);
        let after_code = "```python\nx = {}\n```\n";
        check(style, &format!("{after_code}```json\n{call}\n```"), after_code.trim_end(), &[one]);
    }
}

#[test]
fn what_is_no_call_is_text() {
    use ToolStyle::{Hermes, Json, Llama3, Mistral};
    for (style, text) in [
        (Hermes, "Just text with < and <tool and {\"name\": \"time\"} in it. "),
        (Hermes, "<tool_call>not JSON</tool_call>"),
        (Hermes, "<tool_call>{\"no\": \"name\"}"),
        (Hermes, "<tool_call>"),
        (Hermes, "ends in <tool_cal"),
        (Mistral, "[TOOL_CALLS] what is this?{"),
        (Llama3, "{\"name\": \"unknown\", \"parameters\": {}}"),
        (Hermes, "{\"name\": \"unknown\", \"arguments\": {}}"),
        (Json, "{\"answer\": 42}"),
        (Json, "{not JSON at all"),
        (Json, "[1, 2, 3]"),
        (Json, "Text. {\"name\": \"time\", \"arguments\": {}}"),
        (Json, " \n"),
        (Hermes, "Some JSON:\n```json\n{\"answer\": 42}\n```\nand more.\n"),
        (Json, "```json\n{\"name\": \"unknown\", \"arguments\": {}}\n```"),
        (Json, "```python\n{\"name\": \"time\", \"arguments\": {}}\n```\n{}"),
        (Hermes, "`code` and ``"),
        (Hermes, "```"),
        (Hermes, "```json\n"),
    ] {
        check(style, text, text, &[]);
    }
}

#[test]
fn arguments_come_while_they_are_written() {
    let mut calls = ToolCalls::new(ToolStyle::Hermes, vec![]);
    assert_eq!(calls.push("<tool_call>{\"name\": \"ti"), []);
    assert_eq!(calls.push("me\", \"arg"), [Part::Call { name: "time".into() }]);
    assert_eq!(calls.push("uments\": {\"a"), [Part::Arguments("{\"a".into())]);
    assert_eq!(calls.push("\": 1"), [Part::Arguments("\": 1".into())]);
    assert_eq!(calls.push("}}"), [Part::Arguments("}".into())]);
    assert_eq!(calls.push("</tool_call>"), []);
    // The end of the answer within arguments is no text.
    let mut calls = ToolCalls::new(ToolStyle::Hermes, vec![]);
    assert_eq!(calls.push("<tool_call>{\"name\": \"time\", \"arguments\": {\"a").len(), 2);
    assert_eq!(calls.finish(), []);
}

#[test]
fn the_style_is_the_template_s() {
    for (source, style) in [
        ("… <tool_call></tool_call> …", ToolStyle::Hermes),
        ("… [TOOL_CALLS] …", ToolStyle::Mistral),
        ("… <|python_tag|> …", ToolStyle::Llama3),
        ("Environment: ipython", ToolStyle::Llama3),
        ("{{ messages }}", ToolStyle::Json),
    ] {
        assert_eq!(ToolStyle::of_template(source), style);
    }
}

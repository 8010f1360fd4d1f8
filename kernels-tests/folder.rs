//! Tokenizers and templates of folders: vocabularies of other tests in the files of Hugging Face transformers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farpast::memory::Bytes;
use farpast::text::{Chat, ChatTemplate, Message, Special, Tokenizer, Vocabulary};
use farpast::weights::Weights;
use farpast::{Error, Result, chat};
use serde_json::{Map, Value, json};

use crate::allocation::peak;
use crate::model::checkpoint;
use crate::text::{
    CHECKPOINTS, Fields, Random, Small, ToyPieces, decodes_as_golden, encodes_as_golden, encodings, golden, vocabulary,
};
use crate::toy_chat::{temporary, toy};

#[test]
fn byte_level_tokens_equal_golden_and_those_of_gguf() {
    for (i, pre) in ["smollm", "gpt-2", "llama-bpe", "qwen2"].into_iter().enumerate() {
        let vocabulary = Vocabulary { pre: Some(pre), ..vocabulary() };
        // Merges have been written in both ways.
        let folder = Folder::of(&format!("bytes-{pre}"), &vocabulary, i % 2 == 0);
        let tokenizer = folder.tokenizer().unwrap();
        let cases = encodings(golden("smollm2")).filter(|case| case["pre"] == pre);
        assert!(encodes_as_golden(&tokenizer, pre, cases) >= 25);
        alike(&tokenizer, &Tokenizer::new(&vocabulary).unwrap());
    }
}

#[test]
fn piece_tokens_equal_golden_and_those_of_gguf() {
    for (i, name) in ["llama", "gemma", "without_bytes"].into_iter().enumerate() {
        let toy = ToyPieces::new(name);
        let folder = Folder::of(&format!("pieces-{name}"), &toy.vocabulary(), i % 2 == 0);
        let tokenizer = folder.tokenizer().unwrap();
        let cases = || encodings(golden("pieces")).filter(|case| case["vocabulary"] == name);
        assert!(encodes_as_golden(&tokenizer, name, cases()) >= 25);
        decodes_as_golden(&tokenizer, cases());
        alike(&tokenizer, &Tokenizer::new(&toy.vocabulary()).unwrap());
    }
}

#[test]
fn tokens_of_checkpoints_equal_golden_and_those_of_gguf() {
    for (name, tokens) in CHECKPOINTS {
        let fields = Fields::read(&checkpoint(name));
        let folder = Folder::of(name, &fields.vocabulary(), true);
        let start = Instant::now();
        let tokenizer = folder.tokenizer().unwrap();
        println!("{name}: {} tokens in {:?}", tokenizer.len(), start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(60));
        encodes_as_golden(&tokenizer, name, encodings(golden(tokens)));
        alike(&tokenizer, &Tokenizer::new(&fields.vocabulary()).unwrap());
    }
}

#[test]
fn a_space_at_the_beginning_alone_is_added_once() {
    let toy = ToyPieces::new("llama");
    let folder = Folder::of("first", &toy.vocabulary(), true);
    folder.change("tokenizer.json", |json| {
        json["normalizer"] = Value::Null;
        let kind = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
        json["pre_tokenizer"] = kind;
    });
    let tokenizer = folder.tokenizer().unwrap();
    let every = Tokenizer::new(&toy.vocabulary()).unwrap();
    let encode = |tokenizer: &Tokenizer, text| tokenizer.encode(text, Special::Parse).unwrap();
    assert_eq!(encode(&tokenizer, "the cat"), encode(&every, "the cat"));
    assert_eq!(encode(&tokenizer, " the"), encode(&tokenizer, "the"), "a space that is there is not added");
    let later = encode(&tokenizer, "<s>the");
    assert_eq!(later.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<String>(), "<s>the");
    assert_eq!(tokenizer.decode(&encode(&tokenizer, "the cat")), "the cat");
}

#[test]
fn what_begins_and_ends_a_text_is_found_in_all_files() {
    let small = Small::new();
    let folder = Folder::of("special", &small.vocabulary(), true);
    let found = |tokenizer: &Tokenizer| (tokenizer.bos(), tokenizer.eos(), tokenizer.stop_ids().to_vec());
    assert_eq!(found(&folder.tokenizer().unwrap()), (None, None, vec![257]));
    folder.write("config.json", &json!({"bos_token_id": 3, "eos_token_id": 4}));
    assert_eq!(found(&folder.tokenizer().unwrap()), (Some(3), Some(4), vec![4, 257]));
    folder.write("generation_config.json", &json!({"eos_token_id": [5, 6], "bos_token_id": null}));
    assert_eq!(found(&folder.tokenizer().unwrap()), (Some(3), Some(5), vec![5, 6, 257]));
    folder.write(
        "special_tokens_map.json",
        &json!({"eos_token": "<|im_end|>", "additional_special_tokens": ["ab", "no"]}),
    );
    let tokenizer = folder.tokenizer().unwrap();
    assert_eq!(found(&tokenizer), (Some(3), Some(257), vec![5, 6, 257]));
    assert!(tokenizer.is_control(256) && tokenizer.is_control(5));
    let config = json!({"eos_token": {"content": "<think>"}, "bos_token": "<|im_end|>", "add_bos_token": true});
    folder.write("tokenizer_config.json", &config);
    let tokenizer = folder.tokenizer().unwrap();
    assert_eq!(found(&tokenizer), (Some(257), Some(258), vec![5, 6, 257, 258]));
    assert_eq!(tokenizer.with_bos(vec![7]), [257, 7]);
    for eos in [json!(259), json!(-1), json!("x"), json!([1, 4_000_000_000u32])] {
        folder.write("generation_config.json", &json!({"eos_token_id": eos}));
        says(folder.tokenizer(), &["eos_token_id of generation_config.json", "below 259"]);
    }
}

#[test]
fn marks_are_control_tokens_and_take_white_space_as_they_say() {
    let small = Small::new();
    let folder = Folder::of("marks", &small.vocabulary(), true);
    folder.change("tokenizer.json", |json| {
        let added = json["added_tokens"].as_array_mut().unwrap();
        added.push(json!({"id": 259, "content": "<|mark|>", "special": false, "lstrip": true, "rstrip": true}));
        added.push(json!({"id": 262, "content": "<tool>", "special": false}));
    });
    let tokenizer = folder.tokenizer().unwrap();
    assert_eq!(tokenizer.len(), 263);
    assert!(tokenizer.is_control(259) && !tokenizer.is_control(262));
    assert_eq!(tokenizer.encode("ab \n<|mark|> \tab", Special::Parse).unwrap(), [256, 259, 256]);
    let typed = tokenizer.encode("ab <|mark|> ab<tool>", Special::AsText).unwrap();
    assert!(!typed.contains(&259) && typed.last() == Some(&262));
    assert_eq!(tokenizer.decode(&typed), "ab <|mark|> ab<tool>");
    // Ids between have no text.
    assert_eq!((tokenizer.token(260), tokenizer.decode(&[260, 261])), (Some(""), String::new()));
}

#[test]
fn templates_are_found_in_all_places() {
    let small = Small::new();
    let folder = Folder::of("templates", &small.vocabulary(), true);
    folder.write("tokenizer_config.json", &json!({"bos_token": "<think>", "eos_token": "<|im_end|>"}));
    let tokenizer = folder.tokenizer().unwrap();
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let messages = [Message::new("user", "Hi")];
    let rendered = || -> Result<[String; 2]> {
        let template = ChatTemplate::from_folder(&folder.0, &tokenizer)?;
        let chat = Chat { messages: &messages, ..Chat::default() };
        Ok([template.render(&chat)?, template.render(&Chat { tools: &tools, ..chat })?])
    };
    assert!(rendered().unwrap_err().to_string().contains("<|im_start|>"), "no template and no ChatML");
    folder.write("tokenizer_config.json", &json!({"chat_template": "{{ bos_token }}one{{ eos_token }}"}));
    assert_eq!(rendered().unwrap(), ["<think>one<|im_end|>"; 2]);
    let named = json!([{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    folder.write("tokenizer_config.json", &json!({"chat_template": named}));
    assert_eq!(rendered().unwrap(), ["d", "t"]);
    fs::write(folder.0.join("chat_template.jinja"), "file").unwrap();
    assert_eq!(rendered().unwrap(), ["file", "file"]);
    fs::create_dir(folder.0.join("additional_chat_templates")).unwrap();
    fs::write(folder.0.join("additional_chat_templates/tool_use.jinja"), "tools").unwrap();
    assert_eq!(rendered().unwrap(), ["file", "tools"]);
    fs::write(folder.0.join("chat_template.jinja"), "{% if %}").unwrap();
    assert!(matches!(rendered(), Err(Error::Template(_))));
    fs::write(folder.0.join("chat_template.jinja"), [0xFF]).unwrap();
    assert!(matches!(rendered(), Err(Error::Io { .. })));
}

#[test]
fn a_safetensors_file_has_the_tokenizer_of_its_folder() {
    let small = Small::new();
    let folder = Folder::of("beside", &small.vocabulary(), true);
    fs::write(folder.0.join("chat_template.jinja"), "x").unwrap();
    let open = |name: &str| Weights::from_bytes(folder.0.join(name), Bytes::new(toy(None).write())).unwrap();
    let beside = open("model.safetensors");
    let tokenizer = chat::tokenizer(&beside).unwrap();
    assert_eq!(tokenizer.len(), 259);
    assert_eq!(chat::template(&beside, &tokenizer).unwrap().render(&Chat::default()).unwrap(), "x");
    assert_ne!(chat::tokenizer(&open("model.gguf")).unwrap().len(), 259);
}

#[test]
fn bad_files_are_named_with_what_is_wrong() {
    let small = Small::new();
    let folder = Folder::of("bad", &small.vocabulary(), true);
    let good = folder.read("tokenizer.json");
    let bad = |path: &str, value: Value, parts: &[&str]| {
        let mut json = good.clone();
        *json.pointer_mut(path).unwrap() = value;
        folder.write("tokenizer.json", &json);
        says(folder.tokenizer(), parts);
    };
    bad("/model/type", json!("Unigram"), &["model.type: expected BPE, found Unigram"]);
    bad("/model/vocab", json!({}), &["model.merges[0]", "tokens of the vocabulary", "found a"]);
    bad("/added_tokens/0/content", json!("x".repeat(513)), &["added_tokens", "at most 512 bytes", "513"]);
    bad("/model/vocab/ab", json!(4_000_000_000u32), &["ids below 65796", "4000000000"]);
    bad("/model/vocab/ab", json!(-1), &["tokenizer.json: JSON", "-1"]);
    bad("/model/vocab/ab", json!(7), &["one token of id 7"]);
    bad("/added_tokens/0/id", json!(7), &["one token of id 7", "<|im_end|>"]);
    bad("/added_tokens/0/single_word", json!(true), &["single_word of <|im_end|>"]);
    bad("/model/merges", json!([["a", "zz"]]), &["model.merges[0]", "tokens of the vocabulary", "zz"]);
    bad("/model/merges", json!([["b", "a"]]), &["model.merges[0]", "ba"]);
    for line in ["ab", "a b c", " b", "a ", ""] {
        bad("/model/merges", json!([line]), &["model.merges[0]", "two tokens with a space between"]);
    }
    bad("/model/merges", json!([["a", "b", "c"]]), &["tokenizer.json: JSON"]);
    bad("/model/unk_token", json!("nowhere"), &["model.unk_token", "nowhere"]);
    bad("/model/dropout", json!(0.1), &["model.dropout: expected none, found 0.1"]);
    bad("/model/end_of_word_suffix", json!("</w>"), &["model.end_of_word_suffix", "</w>"]);
    bad("/pre_tokenizer", json!({"type": "Magic"}), &["pre_tokenizer.type", "ByteLevel", "Magic"]);
    bad("/pre_tokenizer", json!({"type": "ByteLevel"}), &["pre_tokenizer", "add_prefix_space"]);
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    bad("/pre_tokenizer", split("(a"), &["regex \"(a\""]);
    bad("/pre_tokenizer", split(&"a".repeat(9000)), &["at most 8192 bytes"]);
    bad("/pre_tokenizer", split("((a{1000}){1000}){1000}"), &["regex"]);
    bad(
        "/normalizer",
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        &["normalizer.type", "Precompiled"],
    );
    let grow = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"});
    bad("/normalizer", json!({"type": "Sequence", "normalizers": vec![grow; 20]}), &["normalizer", "at most 16 times"]);
    let mut nested = json!({"type": "NFC"});
    for _ in 0..50 {
        nested = json!({"type": "Sequence", "normalizers": [nested], "pretokenizers": []});
    }
    bad("/normalizer", nested, &["at most 32 steps"]);

    fs::write(folder.0.join("tokenizer.json"), "[".repeat(1 << 20)).unwrap();
    says(folder.tokenizer(), &["tokenizer.json: JSON"]);
    folder.write("tokenizer.json", &good);
    fs::write(folder.0.join("tokenizer_config.json"), "{").unwrap();
    says(folder.tokenizer(), &["tokenizer_config.json: JSON"]);
    fs::write(folder.0.join("tokenizer_config.json"), vec![b' '; (16 << 20) + 1]).unwrap();
    says(folder.tokenizer(), &["tokenizer_config.json: size: expected at most 16777216 bytes"]);
    fs::remove_file(folder.0.join("tokenizer_config.json")).unwrap();
    fs::create_dir(folder.0.join("tokenizer_config.json")).unwrap();
    says(folder.tokenizer(), &["tokenizer_config.json: file type"]);
    fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
    says(folder.tokenizer(), &["tokenizer.json: tokenizer: expected the file", "no such file"]);
}

#[test]
fn regexes_that_blow_up_are_errors() {
    let small = Small::new();
    let folder = Folder::of("regexes", &small.vocabulary(), true);
    for (regex, text) in [
        ("(a*)*\\1b", "a".repeat(200)),
        ("(?=(a+)+$)b|(a|aa)+(?!a)c", "a".repeat(5_000)),
        ("(?:(?=(a*)*b))x|(.+)+\\2y", "ab".repeat(50_000)),
    ] {
        folder.change("tokenizer.json", |json| {
            let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
            let bytes =
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
            json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
        });
        let tokenizer = folder.tokenizer().unwrap();
        let start = Instant::now();
        let error = tokenizer.encode(&text, Special::AsText).unwrap_err();
        println!("{regex}: {:?}: {error}", start.elapsed());
        assert!(matches!(&error, Error::Tokenizer(what) if what.contains("cutting text into words")), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn many_added_tokens_are_no_trouble() {
    let small = Small::new();
    let folder = Folder::of("many", &small.vocabulary(), true);
    folder.change("tokenizer.json", |json| {
        let added = (0..300_000)
            .map(|i| json!({"id": 259 + i, "content": format!("<{}{i}>", "x".repeat(i % 500)), "special": i % 2 == 0}));
        json["added_tokens"].as_array_mut().unwrap().extend(added);
    });
    let start = Instant::now();
    let tokenizer = folder.tokenizer().unwrap();
    let text = "<xxx3>a".to_owned() + &"<x".repeat(10_000);
    let ids = tokenizer.encode(&text, Special::AsText).unwrap();
    assert_eq!((ids[0], tokenizer.decode(&ids)), (259 + 3, text));
    println!("{:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn mutated_files_neither_panic_nor_hang() {
    let small = Small::new();
    let (llama, gemma) = (ToyPieces::new("llama"), ToyPieces::new("gemma"));
    let folder = Folder::of("mutated", &small.vocabulary(), true);
    let mut random = Random(17);
    let config =
        json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "chat_template": "x"});
    let seeds: Vec<Value> = [small.vocabulary(), llama.vocabulary(), gemma.vocabulary()]
        .iter()
        .flat_map(|vocabulary| [saved(vocabulary, true), saved(vocabulary, false)])
        .collect();
    let (mut built, mut encoded, mut slowest, mut largest) = (0, 0, Duration::ZERO, 0);
    for round in 0..1500 {
        let mut json = seeds[random.below(seeds.len())].clone();
        let mut config = config.clone();
        let bytes = round % 3 == 0;
        for _ in 0..1 + random.below(3) {
            match random.below(5) {
                _ if bytes => {}
                0 => mutate(&mut config, &mut random),
                part => match json.get_mut(["", "added_tokens", "model", "", ""][part]) {
                    Some(part) => mutate(part, &mut random),
                    None => mutate(&mut json, &mut random),
                },
            }
        }
        let mut text = json.to_string().into_bytes();
        for _ in 0..if bytes { 1 + random.below(3) } else { 0 } {
            let at = random.below(text.len());
            text[at] = [b'"', b'{', b']', b',', b'0', b'\\', 0xFF, b'-'][random.below(8)];
        }
        fs::write(folder.0.join("tokenizer.json"), text).unwrap();
        folder.write("tokenizer_config.json", &config);
        let start = Instant::now();
        let (tokenizer, bytes) = peak(|| folder.tokenizer());
        largest = largest.max(bytes);
        if let Ok(tokenizer) = tokenizer {
            built += 1;
            let text = "<s>[INST] The cat  \n sat▁on 123456 東京 👩‍👩‍👧 <|im_end|> <0x41>";
            for special in [Special::AsText, Special::Parse] {
                if let Ok(ids) = tokenizer.encode(text, special) {
                    encoded += 1;
                    tokenizer.decode_with_control(&tokenizer.with_bos(ids));
                }
            }
        }
        slowest = slowest.max(start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(60), "{}", json["pre_tokenizer"]);
    }
    println!(
        "{built} of 1500 built, {encoded} texts encoded, the slowest in {slowest:?}, the largest in {largest} bytes"
    );
    // Files of less than 100 KB, and what their regexes may take.
    assert!(largest < 32 << 20, "{largest}");
    assert!(built > 200 && encoded > 200 && built < 1500);
}

/// Puts something else in a random place.
fn mutate(json: &mut Value, random: &mut Random) {
    let strange = [
        json!(null),
        json!(true),
        json!(-1),
        json!(4_294_967_295u32),
        json!(1e300),
        json!(""),
        json!("▁"),
        json!("\0"),
        json!("a b"),
        json!([]),
        json!({}),
        json!([[["a"]]]),
        json!({"type": "Sequence", "pretokenizers": [], "normalizers": []}),
        json!({"type": "Split", "pattern": {"Regex": "(a*)*"}, "behavior": "Removed", "invert": true}),
        json!({"type": "Replace", "pattern": {"String": "a"}, "content": ""}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"Regex": "."}),
        json!({"String": ""}),
        json!("x".repeat(10_000)),
    ];
    let mut place = json;
    // Shallow places more often: the vocabulary has most of the deep ones.
    while random.below(5) > 0 {
        let length = place.as_array().map_or(0, Vec::len) + place.as_object().map_or(0, Map::len);
        if length == 0 {
            break;
        }
        let at = random.below(length);
        let next = match place {
            Value::Array(items) => items.get_mut(at),
            Value::Object(fields) => fields.values_mut().nth(at),
            _ => None,
        };
        let Some(next) = next else { return };
        place = next;
    }
    match (place, random.below(3)) {
        (Value::Array(items), 0) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
        (Value::Object(fields), 0) if !fields.is_empty() => {
            let key = fields.keys().nth(random.below(fields.len())).unwrap().clone();
            fields.remove(&key);
        }
        (place, _) => *place = strange[random.below(strange.len())].clone(),
    }
}

/// Both have the same tokens with the same meanings.
fn alike(a: &Tokenizer, b: &Tokenizer) {
    assert_eq!(a.len(), b.len());
    for id in 0..b.len() as u32 {
        assert_eq!(
            (a.is_control(id), a.token_bytes(id)),
            (b.is_control(id), b.token_bytes(id)),
            "{id} {:?}",
            b.token(id)
        );
    }
    assert_eq!((a.bos(), a.eos(), a.stop_ids()), (b.bos(), b.eos(), b.stop_ids()));
    assert_eq!(a.with_bos(vec![9]), b.with_bos(vec![9]));
}

/// `tokenizer.json` of a vocabulary, merges as lists of two or as lines.
fn saved(vocabulary: &Vocabulary, pairs: bool) -> Value {
    let byte_level = vocabulary.model == "gpt2";
    let spelled =
        |token: &str, kind: i32| if kind == 4 && !byte_level { token.replace(' ', "▁") } else { token.into() };
    let rows = || (0u32..).zip(vocabulary.tokens.iter().copied()).zip(vocabulary.token_types.iter().copied());
    let mut vocab = Map::new();
    for ((id, token), kind) in rows().filter(|(_, kind)| *kind != 3 || !byte_level) {
        vocab.entry(spelled(token, kind)).or_insert(id.into());
    }
    let merges: Vec<(String, String)> = match byte_level {
        true => vocabulary
            .merges
            .iter()
            .map(|merge| merge.split_once(' ').unwrap())
            .map(|(a, b)| (a.into(), b.into()))
            .collect(),
        false => merges_of_scores(vocabulary, &vocab),
    };
    let content = |token: &str, kind| if token.trim().is_empty() { spelled(token, kind) } else { token.into() };
    let added: Vec<Value> = rows()
        .filter(|(_, kind)| [2, 3, 4].contains(kind))
        .map(|((id, token), kind)| (id, content(token, kind), kind))
        .filter(|(_, token, kind)| byte_level || *kind != 4 || vocab.contains_key(token))
        .map(|(id, token, kind)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": kind != 4})
        })
        .collect();
    let bytes = |use_regex| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let split = |regex: &str| {
        let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
    };
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prefix = json!({"type": "Prepend", "prepend": "▁"});
    let (normalizer, pre_tokenizer) = match (vocabulary.model, vocabulary.pre) {
        ("llama", _) if vocabulary.add_space_prefix == Some(false) => (
            spaces,
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
        ),
        ("llama", _) => (json!({"type": "Sequence", "normalizers": [prefix, spaces]}), Value::Null),
        (_, Some("smollm")) => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (Value::Null, json!({"type": "Sequence", "pretokenizers": [digits, bytes(true)]}))
        }
        (_, Some("llama-bpe")) => (Value::Null, split(LLAMA3)),
        (_, Some("qwen2")) => (json!({"type": "NFC"}), split(QWEN2)),
        _ => (Value::Null, bytes(true)),
    };
    let text = |id: Option<u32>| id.map(|id| vocabulary.tokens[id as usize]);
    let merges: Vec<Value> =
        merges.into_iter().map(|(a, b)| if pairs { json!([a, b]) } else { json!(format!("{a} {b}")) }).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": null,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": if byte_level { None } else { text(vocabulary.unk) },
            "continuing_subword_prefix": null,
            "end_of_word_suffix": "",
            "fuse_unk": !byte_level,
            "byte_fallback": !byte_level,
            "ignore_merges": vocabulary.pre == Some("llama-bpe"),
            "vocab": vocab,
            "merges": merges,
        },
    })
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// All pairs of pieces that are a piece together: by score, then longer left part, longer right part, lower id.
fn merges_of_scores(vocabulary: &Vocabulary, vocab: &Map<String, Value>) -> Vec<(String, String)> {
    let piece = |token: &str| {
        let id = vocab.get(token)?.as_u64()? as usize;
        match vocabulary.token_types[id] {
            1 | 5 => Some((vocabulary.scores[id], id)),
            4 => Some((f32::INFINITY, id)),
            _ => None,
        }
    };
    let scores: HashMap<&str, (f32, usize)> =
        vocab.keys().filter_map(|token| Some((token.as_str(), piece(token)?))).collect();
    let mut merges = vec![];
    for (token, &(score, id)) in &scores {
        for (at, _) in token.char_indices().skip(1) {
            let (a, b) = token.split_at(at);
            if scores.contains_key(a) && scores.contains_key(b) {
                merges.push((score + 0.0, a.chars().count(), b.chars().count(), id, a, b));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((b.1, b.2, a.3).cmp(&(a.1, a.2, b.3))));
    merges.into_iter().map(|(.., a, b)| (a.into(), b.into())).collect()
}

/// A folder of one test, as transformers saves a tokenizer.
struct Folder(PathBuf);

impl Folder {
    fn of(name: &str, vocabulary: &Vocabulary, pairs: bool) -> Folder {
        let folder = Folder(temporary(&format!("folder-{name}")));
        fs::create_dir_all(&folder.0).unwrap();
        folder.write("tokenizer.json", &saved(vocabulary, pairs));
        let text = |id: Option<u32>| id.map(|id| vocabulary.tokens[id as usize]);
        if vocabulary.bos.or(vocabulary.eos).is_some() {
            let default = vocabulary.model == "llama" || vocabulary.pre == Some("llama-bpe");
            let add_bos = vocabulary.add_bos.unwrap_or(default);
            let config = json!({"bos_token": text(vocabulary.bos), "eos_token": {"content": text(vocabulary.eos)}, "add_bos_token": add_bos});
            folder.write("tokenizer_config.json", &config);
        }
        let stop: Vec<u32> = [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten().collect();
        if !stop.is_empty() {
            folder.write("generation_config.json", &json!({"eos_token_id": stop}));
        }
        folder
    }

    fn write(&self, name: &str, json: &Value) {
        fs::write(self.0.join(name), json.to_string()).unwrap();
    }

    fn read(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.0.join(name)).unwrap()).unwrap()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut json = self.read(name);
        change(&mut json);
        self.write(name, &json);
    }

    fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::from_folder(Path::new(&self.0))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn says(result: Result<Tokenizer>, parts: &[&str]) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Tokenizer(_) | Error::File { .. }), "{error:?}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert!(text.len() < 1000, "{text}");
}

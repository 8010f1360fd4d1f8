//! The GGUF reader: what it reads, what it refuses and with which words, and that no file makes it panic or allocate
//! more than its length.

use std::time::{Duration, Instant};

use farpast::Result;
use farpast::format::{F16, F32, Q4_1, Q8_0};
use farpast::memory::Bytes;
use farpast::weights::{Metadata, Value, Weights};

use crate::allocation::peak;
use crate::cases::Random;
use crate::gguf_writer::{GgufWriter, RawTensor, array, string};
use crate::model::test_model;

#[test]
fn metadata_reads_back() {
    let weights = open(rich()).unwrap();
    let m = weights.metadata();
    assert_eq!(m.string("general.architecture").unwrap(), "llama");
    assert_eq!(m.u32("small").unwrap(), 7);
    assert_eq!(m.u32("count").unwrap(), 300);
    assert_eq!(m.u32("big").unwrap(), u32::MAX);
    assert_eq!(m.u32("signed").unwrap(), 5);
    assert_eq!(m.i32("negative").unwrap(), -3);
    assert_eq!(m.f32("eps").unwrap(), 1e-5);
    assert_eq!(m.f32("theta").unwrap(), 10000.5);
    assert!(m.bool("flag").unwrap());
    assert_eq!(m.strings("tokens").unwrap().collect::<Vec<_>>(), ["<s>", "", "Ġhello", "日本"]);
    assert_eq!(m.strings("tokens").unwrap().len(), 4);
    assert_eq!(m.i32s("types").unwrap().collect::<Vec<_>>(), [3, -1, 1]);
    assert_eq!(m.u32s("heads").unwrap().collect::<Vec<_>>(), [8, 4]);
    assert_eq!(m.f32s("scores").unwrap().collect::<Vec<_>>(), [0.5, -1.0]);
    assert_eq!(m.u32s("none").unwrap().len(), 0);
    assert_eq!(m.keys().next(), Some("general.architecture"));
    assert_eq!(m.keys().len(), rich().fields.len());
    assert!(m.contains("eps") && !m.contains("ep"));
    assert_eq!(m.value("tokens").unwrap().to_string(), "array of 4 × string");
    let Some(Value::Array(nested)) = m.value("nested") else { panic!("nested is an array") };
    assert_eq!(nested.iter().map(|v| v.to_string()).collect::<Vec<_>>(), ["array of 2 × u8", "array of 1 × string"]);
}

#[test]
fn optional_metadata_is_none_only_when_absent() {
    let weights = open(rich()).unwrap();
    let m = weights.metadata();
    assert_eq!(m.optional("absent", Metadata::u32).unwrap(), None);
    assert_eq!(m.optional("count", Metadata::u32).unwrap(), Some(300));
    assert_eq!(m.optional("tokens", Metadata::strings).unwrap().unwrap().count(), 4);
    says(m.optional("eps", Metadata::u32), &["metadata eps", "expected an integer of 32 bits", "found float 1e-5"]);
}

#[test]
fn metadata_errors_name_key_expected_and_found() {
    let weights = open(rich()).unwrap();
    let m = weights.metadata();
    says(m.u32("absent"), &["toy.gguf: metadata absent: expected an integer", "found no such key"]);
    says(m.u32("negative"), &["metadata negative", "without sign", "found integer -3"]);
    says(m.u32("huge"), &["metadata huge", "found integer 4294967296"]);
    says(m.i32("big"), &["metadata big", "expected an integer of 32 bits", "found integer 4294967295"]);
    says(m.f32("count"), &["metadata count", "expected a float", "found integer 300"]);
    says(m.f32("wide"), &["metadata wide", "expected a float of 32 bits", "found float 1e300"]);
    says(m.bool("small"), &["metadata small", "expected a bool", "found integer 7"]);
    says(m.string("flag"), &["metadata flag", "expected a UTF-8 string", "found bool true"]);
    says(m.string("tokens"), &["metadata tokens", "found array of 4 × string"]);
    says(m.string("latin"), &["metadata latin", "expected a UTF-8 string", "found string \"caf\u{fffd}\""]);
    says(m.strings("eps").map(drop), &["metadata eps", "expected an array of UTF-8 strings", "found float 1e-5"]);
    says(m.strings("types").map(drop), &["expected an array of UTF-8 strings", "integer 3 as element 0 of array of 3"]);
    says(m.u32s("types").map(drop), &["metadata types", "integer -1 as element 1 of array of 3 × i32"]);
    says(m.u32s("absent").map(drop), &["metadata absent", "found no such key"]);
}

#[test]
fn tensors_read_back() {
    let weights = open(rich()).unwrap();
    let entries: Vec<_> =
        weights.tensors().map(|t| (t.name.to_owned(), t.dims.clone(), t.format_name.into_owned())).collect();
    assert_eq!(entries[0], ("token_embd.weight".into(), vec![5, 64], "Q8_0".into()));
    assert_eq!(entries[3], ("norm.weight".into(), vec![7], "F32".into()));
    let view = weights.tensor("norm.weight", 1, 7).unwrap();
    assert_eq!((view.format, view.rows, view.cols), (&F32, 1, 7));
    let mut norm = [0.0; 7];
    (view.format.decode)(&view.bytes, &mut norm);
    assert_eq!(norm, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let view = weights.tensor("blk.0.attn_q.weight", 3, 32).unwrap();
    assert_eq!((view.format, &view.bytes[..]), (&Q4_1, &rich().tensors[1].bytes[..]));
    assert!(weights.contains("norm.weight") && !weights.contains("norm"));
    drop(weights);
    assert_eq!(view.bytes.len(), 60, "a view outlives its Weights");
}

#[test]
fn a_matrix_of_one_row_may_be_asked_for_as_a_vector() {
    let weights = open(GgufWriter::new().weights("row", &F32, 1, 4, &[1.0; 4])).unwrap();
    assert!(weights.tensor("row", 1, 4).is_ok());
    says(weights.tensor("row", 4, 1), &["tensor row", "expected 4 × 1", "found 1 × 4 F32"]);
}

#[test]
fn tensor_errors_name_tensor_expected_and_found() {
    let weights = open(rich()).unwrap();
    says(weights.tensor("zzz", 2, 3), &["toy.gguf: tensor zzz: expected 2 × 3, found no such tensor"]);
    says(weights.tensor("blk.0.attn_k.weight", 3, 32), &["found no such tensor; similar: blk.0.attn_q.weight"]);
    says(
        weights.tensor("blk.0.attn_q.weight", 32, 3),
        &["tensor blk.0.attn_q.weight", "expected 32 × 3", "found 3 × 32 Q4_1"],
    );
    says(weights.tensor("norm.weight", 7, 1), &["tensor norm.weight", "expected 7 × 1", "found 7 F32"]);
    says(weights.tensor("cube", 2, 4), &["tensor cube", "expected 2 × 4", "found 2 × 2 × 2 F32"]);
}

#[test]
fn an_unsupported_format_matters_only_when_asked_for() {
    let file = rich();
    let weights = open(file).unwrap();
    assert!(weights.tensor("norm.weight", 1, 7).is_ok());
    let formats = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4";
    says(weights.tensor("iq", 1, 256), &[&format!("tensor iq: expected a format of {formats}, found IQ2_XXS")]);
    says(weights.tensor("new", 1, 8), &["tensor new: expected a format of F32", "found ggml type 99"]);
    assert_eq!(weights.tensors().last().unwrap().format_name, "ggml type 99");
}

#[test]
fn a_mapped_file_reads_back_after_release() {
    let values: Vec<f32> = (0..200_000).map(|i| i as f32).collect();
    let file = Temporary::new(&GgufWriter::new().vector("a", &[1.0]).vector("long", &values).write());
    let weights = Weights::open(&file.0).unwrap();
    let view = weights.tensor("long", 1, values.len()).unwrap();
    let sum = |bytes: &[u8]| bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
    let before = sum(&view.bytes);
    weights.tensor("a", 1, 1).unwrap().bytes.release();
    view.bytes.release();
    assert_eq!(sum(&view.bytes), before);
    assert_eq!(weights.path(), file.0);
}

#[test]
fn version_2_and_other_alignments_open() {
    for alignment in [8, 32, 64, 4096] {
        let mut file = rich().u32("general.alignment", alignment);
        (file.version, file.alignment) = (2, alignment as usize);
        assert_eq!(open(file).unwrap().tensor("half", 3, 5).unwrap().bytes[..], rich().tensors[2].bytes);
    }
}

#[test]
fn a_file_without_tensors_opens() {
    assert_eq!(open(GgufWriter::new()).unwrap().tensors().len(), 0);
    assert_eq!(open(GgufWriter::new().u32("a", 1)).unwrap().metadata().u32("a").unwrap(), 1);
}

#[test]
fn an_absent_file_a_directory_and_an_empty_file_are_errors() {
    says(Weights::open("/nonexistent/model.gguf"), &["/nonexistent/model.gguf: "]);
    says(Weights::open(std::env::temp_dir()), &["config.json: expected one beside the weights, found none"]);
    says(Weights::open(&Temporary::new(b"").0), &["magic: expected GGUF, found an empty file"]);
}

#[test]
fn a_wrong_magic_tells_what_the_file_looks_like() {
    let safetensors = [&60u64.to_le_bytes(), &b"{\"model.embed_tokens.weight\":"[..]].concat();
    for (bytes, found) in [
        (&safetensors[..], "found safetensors"),
        (b"PK\x03\x04....", "found a zip archive"),
        (b"\n<!DOCTYPE html><html>", "found HTML"),
        (b"lmgg\0\0\0\0", "found GGML, the format before GGUF"),
        (b"tjgg\0\0\0\0", "found GGJT"),
        (b"version https://git-lfs.github.com/spec/v1", "found a Git LFS pointer"),
        (b"{\"error\":\"no\"}", "found JSON"),
        (b"GGU", "found \"GGU\""),
        (b"\x1b[31m", "found \"\\u{1b}[31\""),
    ] {
        refuses(bytes, &["toy.gguf: magic: expected GGUF, ", found]);
    }
}

#[test]
fn a_wrong_version_is_refused() {
    let of = |version| GgufWriter { version, ..rich() }.write();
    refuses(&of(1), &["version: expected version 2 or 3", "found version 1"]);
    refuses(&of(4), &["found version 4"]);
    refuses(&of(3u32.swap_bytes()), &["in little-endian", "found version 3 in big-endian byte order"]);
    refuses(&of(0), &["found version 0"]);
}

#[test]
fn impossible_counts_are_refused() {
    for count in [100, u64::MAX, 1 << 63] {
        let file = GgufWriter { tensor_count: Some(count), ..rich() };
        let few = GgufWriter { tensor_count: Some(count), ..GgufWriter::new().u32("a", 1) };
        refuses(&few.write(), &["tensor count: expected at most 0, as", "bytes are left", &format!("found {count}")]);
        assert!(open(file).is_err());
        let few = GgufWriter { field_count: Some(count), ..GgufWriter::new() };
        refuses(&few.write(), &["metadata count: expected at most 0", &format!("found {count}")]);
    }
}

#[test]
fn every_truncation_is_refused() {
    let mut file = rich();
    file.tensors.pop();
    let bytes = file.write();
    assert!(open_bytes(&bytes).is_ok());
    for len in 0..bytes.len() {
        refuses(&bytes[..len], &["expected ", ", found "]);
    }
    let fields = GgufWriter::new().f32("eps", 1e-5).write();
    refuses(&fields[..40], &["metadata eps: expected 4 bytes at offset 39, found the end of the file after 1"]);
    refuses(&bytes[..bytes.len() - 1], &["tensor iq: bytes: expected an end within the file's", "found "]);
}

#[test]
fn a_string_longer_than_the_file_is_refused() {
    for len in [1u64 << 20, u64::MAX, i64::MAX as u64] {
        let file = GgufWriter::new().raw("name", 8, len.to_le_bytes());
        refuses(&file.write(), &["length of metadata name: expected at most 0", &format!("found {len}")]);
        let file = GgufWriter::new().raw("names", 9, array(8, [len.to_le_bytes().to_vec()].into_iter()));
        refuses(&file.write(), &["length of element 0 of metadata names", &format!("found {len}")]);
        let mut bytes = rich().write();
        bytes[24..32].copy_from_slice(&len.to_le_bytes());
        refuses(&bytes, &["length of key of metadata field 0: expected at most", &format!("found {len}")]);
        let mut bytes = rich().write();
        let at = find(&bytes, b"norm.weight") - 8;
        bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
        refuses(&bytes, &["length of name of tensor 3: expected at most", &format!("found {len}")]);
    }
}

#[test]
fn an_array_longer_than_the_file_is_refused() {
    for (kind, len) in [(0u32, 1000u64), (4, 1 << 62), (8, u64::MAX), (12, u64::MAX / 8 + 2), (9, 1 << 60)] {
        let value = [&kind.to_le_bytes()[..], &len.to_le_bytes(), &[0; 40]].concat();
        let file = GgufWriter::new().raw("list", 9, value);
        refuses(&file.write(), &["array length of metadata list: expected at most", &format!("found {len}")]);
    }
}

#[test]
fn deep_arrays_are_refused() {
    let nested = |depth| (0..depth).fold(array(0, [vec![1]].into_iter()), |inner, _| array(9, [inner].into_iter()));
    assert!(open(GgufWriter::new().raw("deep", 9, nested(3))).is_ok());
    for depth in [4, 5, 100_000] {
        let bytes = GgufWriter::new().raw("deep", 9, chain(depth)).write();
        refuses(&bytes, &["metadata deep: expected at most 4 arrays in one another, found more"]);
    }
    /// As `nested`, in time that grows with the depth only.
    fn chain(depth: usize) -> Vec<u8> {
        let head = |kind: u32| [&kind.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
        [head(9).repeat(depth), head(0), vec![1]].concat()
    }
}

#[test]
fn unknown_value_types_are_refused() {
    refuses(&GgufWriter::new().raw("x", 13, [0; 64]).write(), &["type of metadata x", "from 0 to 12", "found 13"]);
    let file = GgufWriter::new().raw("x", 9, array(77, [vec![0; 64]].into_iter()));
    refuses(&file.write(), &["element type of metadata x", "from 0 to 12", "found 77"]);
}

#[test]
fn duplicate_keys_are_refused() {
    let file = GgufWriter::new().u32("a", 1).u32("b", 1).f32("a", 2.0);
    refuses(&file.write(), &["metadata a: expected the key once, found it twice, at offsets 24 and 58"]);
}

#[test]
fn duplicate_tensor_names_are_refused() {
    let file = GgufWriter::new().vector("a", &[1.0]).vector("b", &[1.0]).vector("a", &[1.0]);
    refuses(&file.write(), &["tensor a: expected the name once, found it twice, as tensors 0 and 2"]);
}

#[test]
fn impossible_dims_are_refused() {
    let of = |dims: &[u64]| with_tensor(|t| t.dims = dims.into());
    refuses(&of(&[]), &["tensor t: number of dims: expected 1 to 4, found 0"]);
    refuses(&of(&[1; 5]), &["tensor t: number of dims: expected 1 to 4, found 5"]);
    refuses(&of(&[32, 0]), &["tensor t: dims: expected positive ones whose product is below 2^63, found [32, 0]"]);
    refuses(&of(&[1 << 32, 1 << 31]), &["tensor t: dims", "found [4294967296, 2147483648]"]);
    refuses(&of(&[u64::MAX, u64::MAX, u64::MAX, 2]), &["tensor t: dims", "below 2^63"]);
    refuses(&of(&[1 << 32, 1 << 32, 1 << 32, 0]), &["tensor t: dims", "below 2^63"]);
    refuses(&of(&[1 << 62]), &["tensor t: bytes: expected an end within the file's"]);
}

#[test]
fn a_bad_alignment_is_refused() {
    for alignment in [0, 1, 4, 24, 33, 1 << 21, u32::MAX] {
        let words = [
            "metadata general.alignment: expected a power of two from 8 to 1048576",
            &format!("found integer {alignment}"),
        ];
        refuses(&GgufWriter::new().u32("general.alignment", alignment).write(), &words);
    }
    refuses(&GgufWriter::new().i64("general.alignment", i64::MIN).write(), &["general.alignment", "found integer -92"]);
    refuses(&GgufWriter::new().string("general.alignment", "32").write(), &["found string \"32\""]);
}

#[test]
fn a_bad_offset_is_refused() {
    refuses(&with_tensor(|t| t.offset = Some(16)), &["tensor t: offset: expected a multiple of 32, found 16"]);
    refuses(
        &with_tensor(|t| t.offset = Some(32)),
        &["tensor t: bytes: expected an end within the file's", "found 128..256"],
    );
    let last = u64::MAX - 31;
    refuses(&with_tensor(|t| t.offset = Some(last)), &["tensor t: bytes: expected an end", "found 184467440737095516"]);
    let unknown = with_tensor(|t| (t.kind, t.offset) = (1000, Some(1 << 40)));
    refuses(&unknown, &["tensor t: bytes: expected an end within the file's"]);
}

#[test]
fn tensors_that_overlap_are_refused() {
    let mut file = GgufWriter::new().vector("a", &[1.0; 64]).vector("b", &[1.0; 8]);
    file.tensors[1].offset = Some(32);
    refuses(&file.write(), &["tensor b: bytes: expected none of tensor a, 96..352, found 128..160"]);
    file.tensors[1].offset = Some(0);
    refuses(&file.write(), &["tensor a: bytes: expected none of tensor b"]);
}

#[test]
fn names_that_are_not_utf8_are_refused() {
    refuses(&with_tensor(|t| t.name = b"bad\xff".into()), &["name of tensor 0: expected UTF-8, found \"bad\u{fffd}\""]);
    let mut file = rich();
    file.fields[2].key = b"\xc3\x28".into();
    refuses(&file.write(), &["key of metadata field 2: expected UTF-8, found"]);
}

#[test]
fn a_row_of_broken_blocks_is_refused() {
    let file = with_tensor(|t| (t.kind, t.dims) = (Q8_0.ggml, vec![16, 2]));
    refuses(&file, &["tensor t: row length: expected a multiple of 32, the block of Q8_0, found 16"]);
    let file = with_tensor(|t| (t.kind, t.dims) = (14, vec![32]));
    refuses(&file, &["tensor t: row length: expected a multiple of 256, the block of Q6_K, found 32"]);
}

#[test]
fn long_and_odd_names_are_shortened_and_escaped_in_errors() {
    let text = refusal(&with_tensor(|t| (t.name, t.dims) = (vec![b'x'; 100_000], vec![0])));
    assert!(text.len() < 300 && text.contains("xxx…: dims"), "{text}");
    let text = refusal(&with_tensor(|t| (t.name, t.dims) = (b"\x1b[2J\n".into(), vec![0])));
    assert!(text.contains("tensor \\u{1b}[2J\\n: dims"), "{text}");
}

#[test]
fn memory_stays_below_twice_the_file() {
    let words: Vec<String> = (0..50_000).map(|i| format!("w{i}")).collect();
    let mut strings = GgufWriter::new().strings("tokens", &words);
    let mut fields = GgufWriter::new();
    for word in &words {
        fields = fields.u8(word, 1);
        let name = word.clone().into_bytes();
        strings.tensors.push(RawTensor { name, dims: vec![1], kind: 24, offset: None, bytes: vec![1] });
    }
    bounded(&strings.write());
    bounded(&fields.write());
}

#[test]
fn mutated_files_neither_panic_nor_allocate_much() {
    let mut old = GgufWriter { version: 2, alignment: 8, ..rich() }.u32("general.alignment", 8);
    old.fields.rotate_right(1);
    let starts = [rich().write(), old.write(), GgufWriter::new().write(), with_tensor(|_| ())];
    let seconds = std::env::var("FARPAST_FUZZ_SECONDS").ok().map(|s| s.parse::<f64>().expect("FARPAST_FUZZ_SECONDS"));
    let end = seconds.map(|s| Instant::now() + Duration::from_secs_f64(s));
    let (mut opened, mut i) = (0, 0u64);
    while i < 20_000 || end.is_some_and(|end| Instant::now() < end) {
        let bytes = mutate(&mut Random(i), &starts);
        match std::panic::catch_unwind(|| bounded(&bytes)) {
            Ok(open) => opened += u64::from(open),
            Err(_) => panic!("mutation {i} (see the panic above)"),
        }
        i += 1;
    }
    println!("{i} mutations, {opened} opened");
    assert!(opened > i / 50 && opened < i / 2, "{opened} of {i} opened: mutations are too mild or too harsh");
}

#[test]
fn a_real_file_opens() {
    let start = Instant::now();
    let weights = Weights::open(test_model()).unwrap();
    let opened = start.elapsed();
    let tokens = weights.metadata().strings("tokenizer.ggml.tokens").unwrap().map(str::len).sum::<usize>();
    println!("opened in {opened:?}; {tokens} bytes of tokens checked and read by {:?}", start.elapsed());
    for entry in weights.tensors() {
        let cols = *entry.dims.last().unwrap() as usize;
        let rows = entry.dims.iter().product::<u64>() as usize / cols;
        let view = weights.tensor(entry.name, rows, cols).unwrap();
        let mut decoded = vec![f32::NAN; rows * cols];
        (view.format.decode)(&view.bytes, &mut decoded);
        let largest = decoded.iter().fold(0f32, |most, w| most.max(w.abs()));
        assert!(decoded.iter().all(|w| w.is_finite()) && (1e-3..1e3).contains(&largest), "{}: {largest}", entry.name);
        view.bytes.release();
    }
    println!("{} tensors decoded by {:?}", weights.tensors().len(), start.elapsed());
}

/// One of everything. The last tensor is of an unknown type.
fn rich() -> GgufWriter {
    let values: Vec<f32> = (0..320).map(|i| (i % 23) as f32 * 0.1 - 1.0).collect();
    let mut file = GgufWriter::new()
        .string("general.architecture", "llama")
        .u8("small", 7)
        .u16("count", 300)
        .u32("big", u32::MAX)
        .i64("signed", 5)
        .i32("negative", -3)
        .u64("huge", 1 << 32)
        .f32("eps", 1e-5)
        .f64("theta", 10000.5)
        .f64("wide", 1e300)
        .bool("flag", true)
        .raw("latin", 8, string(b"caf\xe9"))
        .strings("tokens", &["<s>", "", "Ġhello", "日本"])
        .i32s("types", &[3, -1, 1])
        .u32s("heads", &[8, 4])
        .f32s("scores", &[0.5, -1.0])
        .u32s("none", &[])
        .raw(
            "nested",
            9,
            array(9, [array(0, [vec![1], vec![2]].into_iter()), array(8, [string(b"a")].into_iter())].into_iter()),
        )
        .weights("token_embd.weight", &Q8_0, 5, 64, &values)
        .weights("blk.0.attn_q.weight", &Q4_1, 3, 32, &values[..96])
        .weights("half", &F16, 3, 5, &values[..15])
        .vector("norm.weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    for (name, dims, kind, len) in [("cube", vec![2, 2, 2], 0, 32), ("iq", vec![256], 16, 66), ("new", vec![8], 99, 8)]
    {
        file.tensors.push(RawTensor { name: name.into(), dims, kind, offset: None, bytes: vec![1; len] });
    }
    file
}

/// A file of one tensor `t`, 128 bytes of F32, changed by `change`.
fn with_tensor(change: impl FnOnce(&mut RawTensor)) -> Vec<u8> {
    let mut file = GgufWriter::new().weights("t", &F32, 1, 32, &[1.0; 32]);
    change(&mut file.tensors[0]);
    file.write()
}

fn open(file: GgufWriter) -> Result<Weights> {
    open_bytes(&file.write())
}

fn open_bytes(bytes: &[u8]) -> Result<Weights> {
    Weights::from_bytes("toy.gguf", Bytes::new(bytes.to_vec()))
}

fn refusal(bytes: &[u8]) -> String {
    open_bytes(bytes).expect_err("the file is bad").to_string()
}

fn refuses(bytes: &[u8], words: &[&str]) {
    says(open_bytes(bytes), words);
}

fn says<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("no error, but {words:?} was expected") };
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|window| window == part).expect("the part occurs")
}

/// Opens and reads everything; whether it opened. Panics when that allocates more than twice the file and 64 KiB.
fn bounded(bytes: &[u8]) -> bool {
    let owner = Bytes::new(bytes.to_vec());
    let (opened, most) = peak(|| match Weights::from_bytes("toy.gguf", owner) {
        Ok(weights) => {
            read_all(&weights);
            true
        }
        Err(error) => {
            assert!(error.to_string().len() < 1000, "{error}");
            false
        }
    });
    let bound = 2 * bytes.len() + (64 << 10);
    assert!(most <= bound, "{most} bytes were allocated for a file of {}", bytes.len());
    opened
}

fn read_all(weights: &Weights) {
    let m = weights.metadata();
    for key in m.keys() {
        let _ = (m.string(key), m.u32(key), m.i32(key), m.f32(key), m.bool(key));
        let _ = (m.strings(key).map(Iterator::count), m.u32s(key).map(Iterator::max));
        let _ = (m.i32s(key).map(Iterator::max), m.f32s(key).map(Iterator::count));
        walk(m.value(key).expect("keys() lists keys that exist"));
    }
    for entry in weights.tensors() {
        assert!(weights.contains(entry.name));
        let cols = *entry.dims.last().unwrap() as usize;
        let rows = entry.dims.iter().product::<u64>() as usize / cols;
        if let Ok(view) = weights.tensor(entry.name, rows, cols) {
            assert_eq!(view.format.checkpoint_bytes(rows * cols), Some(view.bytes.len()), "{}", entry.name);
        }
    }
    let _ = weights.tensor("absent", 1, 1);
    fn walk(value: Value) {
        assert!(value.to_string().len() < 1000);
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
            array.iter().for_each(walk);
        }
    }
}

/// A valid file with one to four changes.
fn mutate(random: &mut Random, starts: &[Vec<u8>]) -> Vec<u8> {
    const EXTREME: [u64; 12] =
        [0, 1, 5, 31, 255, 1 << 16, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 62, i64::MAX as u64, u64::MAX];
    let mut bytes = starts[random.below(starts.len())].clone();
    for _ in 0..1 + random.below(4) {
        if bytes.len() < 16 {
            break;
        }
        let mut at = random.below(bytes.len() - 8);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let len = bytes.len();
                bytes.truncate(len - random.below(len / 2));
            }
            3 => drop(bytes.drain(at..at + random.below(9))),
            4 => {
                let other = &starts[random.below(starts.len())];
                let from = random.below(other.len());
                let part = other[from..other.len().min(from + random.below(64))].to_vec();
                let end = if random.below(2) == 0 { at } else { bytes.len().min(at + part.len()) };
                bytes.splice(at..end, part);
            }
            5 => {
                let value = EXTREME[random.below(EXTREME.len())] as u32;
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                // The next eight bytes that could be a length, count, dim or offset.
                let last = bytes.len() - 8;
                let small = |at: &usize| u64::from_le_bytes(bytes[*at..at + 8].try_into().unwrap()) < 4096;
                at = (at..=last).find(small).unwrap_or(at);
                let value = EXTREME[random.below(EXTREME.len())].wrapping_add(random.below(3) as u64);
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    bytes
}

/// A file that is deleted when dropped.
struct Temporary(std::path::PathBuf);

impl Temporary {
    fn new(bytes: &[u8]) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farpast-{}-{}.gguf", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

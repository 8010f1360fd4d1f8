//! Checkpoints as Hugging Face's transformers writes them: `config.json` beside safetensors, one file or shards with an
//! index. Names and metadata are those that llama.cpp's converter gives them; weights stay as they are.

mod config;
mod names;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use self::config::{Field, Model};
use self::names::{Meaning, Names};
use super::safetensors::{self, File, json, json_fault};
use super::{Fault, Shown, Source, TensorEntry, Value};
use crate::format::{F32, Format};
use crate::memory::{Bytes, WeightRows};
use crate::{Error, Result};

/// A checkpoint's files, and its tensors by GGUF name.
pub(super) struct HuggingFace {
    config: PathBuf,
    fields: Vec<(String, Field)>,
    files: Vec<File>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: Box<str>,
    file: u32,
    /// In the file.
    index: u32,
    /// 1 is to be added to the weights.
    plus_one: bool,
}

const MAX_CONFIG: usize = 1 << 20;
const MAX_INDEX: usize = 100_000_000;
const MAX_SHARDS: usize = 10_000;

impl HuggingFace {
    /// Opens a folder, or one file with its configuration beside it. `read` gives the bytes of a file.
    pub fn open(path: &Path, read: &dyn Fn(&Path) -> Result<Bytes>) -> Result<HuggingFace> {
        let is_file = path.extension().is_some_and(|extension| extension == "safetensors") && !path.is_dir();
        let folder = if is_file { path.parent().unwrap_or(Path::new("")) } else { path };
        let single = is_file.then(|| read(path)).transpose()?;
        let config = folder.join("config.json");
        let Some(bytes) = present(read, &config)? else {
            return Err(Error::file(folder, "config.json", "one beside the weights", "none"));
        };
        let text = json(&bytes, MAX_CONFIG).map_err(|fault| fault.of(&config))?;
        let Model { fields, tables, names, vocab, tied, norms_lack_one } = config::read(text, &config)?;
        let mut files = match single {
            Some(bytes) => vec![File::parse(path, bytes)?],
            None => open_files(folder, read)?,
        };
        files.push(File::parse(&config, Bytes::new(tables))?);

        let tensors = tensors(&files, &names, norms_lack_one)?;
        let checkpoint = HuggingFace { config, fields, files, tensors };
        checkpoint.expect_unique()?;
        checkpoint.expect_ties(tied)?;
        checkpoint.expect_vocabulary(vocab)?;
        Ok(checkpoint)
    }

    fn tensor(&self, i: usize) -> (&Tensor, &File) {
        let tensor = &self.tensors[i];
        (tensor, &self.files[tensor.file as usize])
    }

    /// Two names of transformers may be one of GGUF files.
    fn expect_unique(&self) -> Result<()> {
        let Some(i) = self.tensors.windows(2).position(|pair| pair[0].name == pair[1].name) else { return Ok(()) };
        let ((path, name), (other, twin)) = (self.place(i + 1), self.place(i));
        let found = format!("{twin} in {} too", other.display());
        Err(Error::Tensor { path: path.into(), name, expected: "the tensor once".into(), found })
    }

    /// The output must be there when the configuration says that it is not the embedding.
    fn expect_ties(&self, tied: Option<bool>) -> Result<()> {
        match (tied, self.find("output.weight")) {
            (Some(false), None) => Err(Error::Tensor {
                path: self.files[0].path.clone(),
                name: "lm_head.weight".into(),
                expected: "one, as tie_word_embeddings of config.json is false".into(),
                found: "no such tensor".into(),
            }),
            _ => Ok(()),
        }
    }

    fn expect_vocabulary(&self, vocab: Option<u64>) -> Result<()> {
        let (Some(vocab), Some(i)) = (vocab, self.find("token_embd.weight")) else { return Ok(()) };
        let rows = self.entry(i).dims[0];
        if rows == vocab {
            return Ok(());
        }
        let (path, name) = self.place(i);
        let expected = format!("{vocab} rows by vocab_size of config.json");
        Err(Error::Tensor { path: path.into(), name, expected, found: format!("{rows} rows") })
    }
}

impl Source for HuggingFace {
    fn metadata_path(&self) -> &Path {
        &self.config
    }

    fn n_keys(&self) -> usize {
        self.fields.len()
    }

    fn key(&self, i: usize) -> &str {
        &self.fields[i].0
    }

    fn value(&self, key: &str) -> Option<Value<'_>> {
        let (_, field) = self.fields.iter().find(|(name, _)| name == key)?;
        Some(match field {
            Field::Integer(value) => Value::Integer((*value).into()),
            Field::Float(value) => Value::Float(*value),
            Field::Text(text) => Value::String(text.as_bytes()),
        })
    }

    fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    fn entry(&self, i: usize) -> TensorEntry<'_> {
        let (tensor, file) = self.tensor(i);
        let entry = file.entry(tensor.index as usize);
        TensorEntry {
            name: &tensor.name,
            dims: entry.dims,
            format_name: Cow::Borrowed(entry.dtype),
            format: safetensors::format(entry.dtype),
            bytes: entry.bytes,
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.tensors.binary_search_by(|tensor| (*tensor.name).cmp(name)).ok()
    }

    fn place(&self, i: usize) -> (&Path, String) {
        let (tensor, file) = self.tensor(i);
        let name = Shown(file.name(tensor.index as usize).as_bytes()).to_string();
        (&file.path, if name == *tensor.name { name } else { format!("{name} ({})", tensor.name) })
    }

    fn shapes_from(&self) -> &str {
        " by config.json"
    }

    fn formats(&self) -> String {
        safetensors::SUPPORTED.into()
    }

    fn rows(&self, i: usize, format: &'static Format, rows: usize, cols: usize) -> WeightRows {
        let (tensor, file) = self.tensor(i);
        let stored = WeightRows::new(format, rows, cols, file.bytes.slice(self.entry(i).bytes));
        if !tensor.plus_one {
            return stored;
        }
        let mut weights = vec![0.0; rows * cols];
        (format.decode)(&stored.bytes, &mut weights);
        let bytes: Vec<u8> = weights.iter().flat_map(|w| (w + 1.0).to_le_bytes()).collect();
        WeightRows::new(&F32, rows, cols, Bytes::new(bytes))
    }
}

/// The tensors of all files that are the model's, by GGUF name.
fn tensors(files: &[File], names: &Names, norms_lack_one: bool) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::with_capacity(files.iter().map(File::len).sum());
    for (f, file) in files.iter().enumerate() {
        for i in 0..file.len() {
            let name = file.name(i);
            let plus_one = match names.meaning(name) {
                Meaning::Weight => false,
                Meaning::Norm => norms_lack_one,
                Meaning::Nothing => continue,
                Meaning::Layer(l) => {
                    let expected = format!("layers below {} by num_hidden_layers of config.json", names.layers);
                    let (path, name) = (file.path.clone(), Shown(name.as_bytes()).to_string());
                    return Err(Error::Tensor { path, name, expected, found: format!("layer {l}") });
                }
            };
            let name = names.gguf(name).into();
            tensors.push(Tensor { name, file: f as u32, index: i as u32, plus_one });
        }
    }
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

/// `model.safetensors`, else the shards that the index names.
fn open_files(folder: &Path, read: &dyn Fn(&Path) -> Result<Bytes>) -> Result<Vec<File>> {
    const SINGLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let [single, path] = [SINGLE, INDEX].map(|name| folder.join(name));
    if let Some(bytes) = present(read, &single)? {
        return Ok(vec![File::parse(&single, bytes)?]);
    }
    let Some(bytes) = present(read, &path)? else {
        return Err(Error::file(folder, "weights", format!("{SINGLE} or {INDEX}"), "neither"));
    };
    let of_index = |fault: Fault| fault.of(&path);
    let index = json(&bytes, MAX_INDEX).map_err(of_index)?;
    let mut shards = BTreeSet::new();
    each(index, |name, shard| {
        let mut components = Path::new(shard).components();
        let plain = matches!(components.next(), Some(Component::Normal(file)) if file == shard);
        if !plain || shard.contains(['/', ':']) {
            let what = format!("weight_map of {}", Shown(name.as_bytes()));
            return Err(Fault::new(what, "a file of this folder", format!("\"{}\"", Shown(shard.as_bytes()))));
        }
        if shards.len() == MAX_SHARDS {
            return Err(Fault::new("weight_map", format!("at most {MAX_SHARDS} files"), "more"));
        }
        shards.insert(shard);
        Ok(())
    })
    .map_err(of_index)?;
    let open = |shard: &&str| {
        let path = folder.join(shard);
        File::parse(&path, read(&path)?)
    };
    let files = shards.iter().map(open).collect::<Result<Vec<_>>>()?;
    let shards: Vec<_> = shards.into_iter().collect();
    let mut named = 0;
    each(index, |name, shard| {
        named += 1;
        let file = shards.binary_search(&shard).expect("every shard was opened");
        match files[file].find(name) {
            Some(_) => Ok(()),
            None => {
                let what = format!("weight_map of {}", Shown(name.as_bytes()));
                Err(Fault::new(what, format!("a tensor of {shard}"), "none of this name there"))
            }
        }
    })
    .map_err(of_index)?;
    let held: usize = files.iter().map(File::len).sum();
    if named != held {
        let expected = format!("the {held} tensors of its files once each");
        return Err(of_index(Fault::new("weight_map", expected, format!("{named} entries"))));
    }
    Ok(files)
}

/// The bytes of a file, if there is one.
fn present(read: &dyn Fn(&Path) -> Result<Bytes>, path: &Path) -> Result<Option<Bytes>> {
    match read(path) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Calls `f` with each entry of an index: a tensor's name, the file it is in.
fn each<'a>(index: &'a str, f: impl FnMut(&'a str, &'a str) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut json = serde_json::Deserializer::from_str(index);
    let mut entries = Entries { f, inside: false, found: false, fault: None };
    let read = (&mut json).deserialize_map(&mut entries).and_then(|()| json.end());
    let Entries { found, fault, .. } = entries;
    read.map_err(|error| fault.unwrap_or_else(|| json_fault(error)))?;
    if found { Ok(()) } else { Err(Fault::new("weight_map", "an object", "no such key")) }
}

/// Visits an index and what is inside its `weight_map`, up to the first fault.
struct Entries<F> {
    f: F,
    inside: bool,
    found: bool,
    fault: Option<Fault>,
}

impl<'de, F: FnMut(&'de str, &'de str) -> Result<(), Fault>> DeserializeSeed<'de> for &mut Entries<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&'de str, &'de str) -> Result<(), Fault>> Visitor<'de> for &mut Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object with a weight_map of names without escapes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<&str>()? {
            if self.inside {
                if let Err(fault) = (self.f)(key, map.next_value()?) {
                    self.fault = Some(fault);
                    return Err(A::Error::custom("a fault"));
                }
            } else if key == "weight_map" {
                self.inside = true;
                map.next_value_seed(&mut *self)?;
                (self.inside, self.found) = (false, true);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

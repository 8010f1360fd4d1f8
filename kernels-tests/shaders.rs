//! Every assembled shader, without a device: valid in its tier, and just as its kernel's table says.

use std::cell::RefCell;
use std::collections::HashSet;

use farpast::kernel::{Access, Kernel, Step};
use farpast::program::{Dispatch, Program};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, StorageAccess, TypeInner};

use crate::toy;

/// Validates a shader: with no capability beyond those every WebGPU device has, but for subgroups and f16 where it uses
/// them.
pub fn validate(text: &str) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    // unpack2x16float, which is WGSL without extensions: naga counts it for the sake of old GLES.
    let plain = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let used = if uses_subgroups(text) { plain | Capabilities::SUBGROUP } else { plain };
    let used = if computes_f16(text) { used | Capabilities::SHADER_FLOAT16 } else { used };
    let used = if uses_matrices(text) { used | Capabilities::COOPERATIVE_MATRIX } else { used };
    let info = Validator::new(ValidationFlags::all(), used).validate(&module);
    let info = info.map_err(|e| e.emit_to_string(text))?;
    Ok((module, info))
}

/// Whether a shader is of the tier with subgroups.
fn uses_subgroups(text: &str) -> bool {
    words(text).any(|w| SUBGROUPS.contains(&w))
}

/// What the tier with subgroups uses of them: browsers have all of it.
const SUBGROUPS: [&str; 7] = [
    "subgroup_id",
    "num_subgroups",
    "subgroup_invocation_id",
    "subgroupBroadcast",
    "subgroupMax",
    "subgroupShuffle",
    "subgroupShuffleXor",
];

/// Words of the code, without comments.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().map(|l| l.split("//").next().unwrap_or_default());
    code.flat_map(|l| l.split(|c: char| !c.is_alphanumeric() && c != '_'))
}

/// Whether a shader is of the tier with f16.
fn computes_f16(text: &str) -> bool {
    text.contains("\nenable f16;\n")
}

/// Whether a shader is of the tier with cooperative matrices.
fn uses_matrices(text: &str) -> bool {
    text.contains("\nenable wgpu_cooperative_matrix;\n")
}

/// One dispatch for each different shader of the cases and models.
fn dispatches() -> Vec<Dispatch> {
    let mut seen = HashSet::new();
    let programs: Vec<Program> = toy::programs();
    let all = programs.into_iter().flat_map(|p| p.dispatches);
    all.filter(|d| seen.insert((d.kernel.name, d.spec.clone()))).collect()
}

fn each(check: impl Fn(&Kernel, &str, &Module)) {
    let dispatches = dispatches();
    for kernel in farpast::kernels::ALL {
        assert!(dispatches.iter().any(|d| d.kernel.name == kernel.name), "no case of {}", kernel.name);
    }
    for d in &dispatches {
        let text = d.kernel.wgsl(&d.spec);
        let (module, _) = validate(&text).unwrap_or_else(|e| panic!("{} {:?}: {e}", d.kernel.name, d.spec));
        check(d.kernel, &text, &module);
    }
}

#[test]
fn every_kernel_has_a_plain_shader_and_others_say_what_they_use() {
    let plain = RefCell::new(HashSet::new());
    each(|kernel, text, _| {
        let mut allowed = vec![];
        if uses_subgroups(text) {
            allowed.extend(SUBGROUPS);
        }
        if computes_f16(text) {
            allowed.extend(["enable", "f16"]);
        }
        if uses_matrices(text) {
            allowed.extend(["enable", "wgpu_cooperative_matrix", "subgroup", "subgroups"]);
            allowed.extend(words(text).filter(|w| w.starts_with("coop")));
        }
        let starts = |w: &&str| ["subgroup", "coop", "wgpu"].iter().any(|start| w.starts_with(start));
        let beyond = |w: &&str| (["enable", "f16"].contains(w) || starts(w)) && !allowed.contains(w);
        assert_eq!(words(text).find(beyond), None, "{}", kernel.name);
        if !uses_subgroups(text) && !computes_f16(text) {
            plain.borrow_mut().insert(kernel.name);
        }
    });
    assert_eq!(plain.into_inner().len(), farpast::kernels::ALL.len());
}

#[test]
fn bindings_are_those_of_the_table() {
    each(|kernel, _, module| {
        let mut found: Vec<_> =
            module.global_variables.iter().filter_map(|(_, v)| v.binding.map(|b| (b.group, b.binding, v))).collect();
        found.sort_by_key(|(group, binding, _)| (*group, *binding));
        let access = |name: &str, space| match space {
            AddressSpace::Uniform if name == "step" => Access::Step,
            AddressSpace::Uniform => Access::Uniform,
            AddressSpace::Storage { access } if access == StorageAccess::LOAD => Access::Read,
            AddressSpace::Storage { access } if access == StorageAccess::LOAD | StorageAccess::STORE => {
                Access::ReadWrite
            }
            other => panic!("{}: bound in {other:?}", kernel.name),
        };
        let names: Vec<_> = found
            .iter()
            .map(|(_, _, v)| {
                let name = v.name.as_deref().unwrap();
                (name, access(name, v.space))
            })
            .collect();
        assert_eq!(names, kernel.bindings, "{}", kernel.name);
        assert!((0..).zip(&found).all(|(i, (group, binding, _))| (*group, *binding) == (0, i)), "{}", kernel.name);
    });
}

#[test]
fn step_has_the_layout_of_the_host() {
    let offsets = [
        ("n_tokens", std::mem::offset_of!(Step, n_tokens)),
        ("n_outputs", std::mem::offset_of!(Step, n_outputs)),
        ("n_sequences", std::mem::offset_of!(Step, n_sequences)),
        ("n_tiles", std::mem::offset_of!(Step, n_tiles)),
        ("max_pages", std::mem::offset_of!(Step, max_pages)),
        ("rows", std::mem::offset_of!(Step, rows)),
        ("segment", std::mem::offset_of!(Step, segment)),
        ("zero", std::mem::offset_of!(Step, zero)),
        ("n_penalized", std::mem::offset_of!(Step, n_penalized)),
        ("n_logprobs", std::mem::offset_of!(Step, n_logprobs)),
        ("first_id", std::mem::offset_of!(Step, first_id)),
    ];
    each(|kernel, _, module| {
        let (_, step) = module.types.iter().find(|(_, t)| t.name.as_deref() == Some("Step")).unwrap();
        let TypeInner::Struct { members, span } = &step.inner else { panic!("{}: Step is no struct", kernel.name) };
        let found: Vec<_> = members.iter().map(|m| (m.name.as_deref().unwrap(), m.offset as usize)).collect();
        assert_eq!(found, offsets, "{}", kernel.name);
        assert_eq!(*span as usize, size_of::<Step>(), "{}", kernel.name);
    });
}

#[test]
fn every_shader_keeps_to_the_limits_of_webgpu() {
    each(|kernel, _, module| {
        let storage = kernel.bindings.iter().filter(|(_, a)| matches!(a, Access::Read | Access::ReadWrite)).count();
        assert!(storage <= 8, "{}: {storage} storage bindings", kernel.name);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, v)| layouter[v.ty].size.next_multiple_of(16)).sum();
        assert!(bytes <= 16 << 10, "{}: {bytes} bytes of workgroup memory", kernel.name);
        let [entry] = module.entry_points.as_slice() else { panic!("{}: one entry point", kernel.name) };
        assert_eq!(entry.name, "main", "{}", kernel.name);
        assert!(entry.workgroup_size.iter().product::<u32>() <= 256, "{}", kernel.name);
        assert!(entry.workgroup_size[2] <= 64, "{}", kernel.name);
    });
}

#[test]
fn validation_rejects_what_is_beyond_the_plain_tier() {
    let shader = |body: &str| {
        validate(&format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n\
             @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {{ {body} }}"
        ))
    };
    assert!(shader("y[i] = 1.0;").is_ok());
    for wrong in ["y[i] = subgroupAdd(y[i]);", "y[i] = f32(f16(y[i]));", "y[i] = f32(f64(y[i]));", "y[i] = z;"] {
        assert!(shader(wrong).is_err(), "{wrong}");
    }
}

//! Checks that objects have a kind that there is, and only fields and values that their kinds have: MUL080 to MUL084.

use serde_json::Value;

use super::Context;
use crate::{
    check::{
        finding::Findings,
        path::Path,
        placeholder::{is_filled_in_later, is_placeholder},
        problem::Problem,
        schemas::Reading,
        subject::Object,
        table::Severity,
        yaml::edit::Edit,
    },
    input,
};

/// Checks an object of a file. Objects of a cluster have been read by its API server, which may be of a later version than the schemas here.
pub(super) fn check(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    if object.is_live() {
        return;
    }
    match context.schemas.read(object) {
        Reading::Read {
            unknown,
            misfits,
            refused,
            warned,
        } => {
            let is_known = |name: &str| !is_placeholder(name);
            for field in unknown.into_iter().filter(|own| is_known(&own.name)) {
                let problem = Problem::UnknownField {
                    name: field.name,
                    near: field.near,
                    is_of_eksctl: object.is("ClusterConfig", "eksctl.io"),
                };
                found.add("MUL080", index, field.path, problem);
            }
            for misfit in misfits {
                let value = misfit.path.get(&object.value).unwrap_or(&Value::Null);
                if is_filled_in_later(value) {
                    continue;
                }
                let problem = Problem::Misfit {
                    kind: object.kind().to_owned(),
                    version: object.api_version().to_owned(),
                    value: input::shape(value),
                    expected: misfit.expected,
                    refusal: misfit.refusal,
                };
                found.add("MUL080", index, misfit.path, problem);
            }
            for own in refused {
                let problem = Problem::Refused {
                    field: own.field,
                    why: own.why,
                    near: own.near,
                    is_missing: own.is_missing,
                };
                found.add("MUL083", index, own.path, problem);
            }
            for own in warned {
                found.add(
                    "MUL084",
                    index,
                    own.path,
                    Problem::Warned { text: own.text },
                );
            }
        }
        Reading::Nameless { lacks, near } => {
            let misspelt = ["kind", "apiVersion"].into_iter();
            let misspelt = misspelt.filter_map(|field| Some((field, object.misspelt(field)?)));
            let misspelt: Vec<_> = misspelt.collect();
            for (field, key) in &misspelt {
                let problem = Problem::Misspelt {
                    key: (*key).to_owned(),
                    field,
                };
                let at = Path::of(&[key]);
                let edit = Edit::Rename(at.clone(), (*field).to_owned());
                found.add("MUL082", index, at, problem).safe([edit]);
            }
            if misspelt.iter().any(|(field, _)| *field == lacks) {
                return;
            }
            // A kind that Kubernetes does not have may be another program's: a `kind` alone is no sign of an object.
            let is_foreign = lacks == "apiVersion" && near.is_none();
            let problem = Problem::Nameless { lacks, near };
            let finding = found.add("MUL082", index, Path::default(), problem);
            if is_foreign {
                finding.as_a(Severity::Warn);
            }
        }
        Reading::NoSuchKind { near } => {
            let problem = Problem::NoSuchKind {
                kind: object.kind().to_owned(),
                version: object.api_version().to_owned(),
                near,
            };
            found.add("MUL081", index, Path::of(&["kind"]), problem);
        }
        // Said once for all objects of the kind.
        Reading::Unknown { .. } => {}
    }
}

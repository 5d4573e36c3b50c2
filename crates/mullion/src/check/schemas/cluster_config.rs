//! Reads eksctl's ClusterConfig by the fields that eksctl has.

use mullion_api::eksctl::fields::{self, FieldFaultKind};

use super::{Misfit, Reading, Refusal, UnknownField, group_of};
use crate::check::{path::Path, subject::Object};

const GROUP: &str = "eksctl.io";
const VERSION: &str = "eksctl.io/v1alpha5";
const KIND: &str = "ClusterConfig";

/// Returns whether an API version is for files of eksctl.
pub(super) fn is_of_eksctl(api_version: &str) -> bool {
    group_of(api_version) == GROUP
}

/// Reads an object of eksctl's group.
pub(super) fn read(object: &Object) -> Reading {
    if object.kind().is_empty() {
        let lacks = "kind";
        return Reading::Nameless { lacks, near: None };
    }
    if object.api_version() != VERSION || object.kind() != KIND {
        let near = Some(format!("eksctl reads {KIND} in {VERSION}"));
        return Reading::NoSuchKind { near };
    }
    let (mut unknown, mut misfits) = (Vec::new(), Vec::new());
    for fault in fields::faults(&object.value) {
        let path = Path::of_eksctl(fault.path);
        match fault.kind {
            FieldFaultKind::Unknown { near } => unknown.push(UnknownField {
                name: path.to_string(),
                near: near.map(str::to_owned),
                path,
            }),
            FieldFaultKind::Type { expected } => misfits.push(Misfit {
                path,
                expected: Some(expected),
                refusal: Refusal::Eksctl,
            }),
        }
    }
    Reading::Read {
        unknown,
        misfits,
        refused: Vec::new(),
        warned: Vec::new(),
    }
}

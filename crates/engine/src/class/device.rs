//! The claims of a pod, compiled. What the names stand for changes while the class does not: see [`crate::devices`].

use crate::intern::{Interner, Symbol};
use crate::model::PodClaims;

/// The claims of a pod.
#[derive(Clone, Debug)]
pub(crate) struct ClaimedDevices {
    pub(crate) pod: Symbol,
    pub(crate) uid: Symbol,
    pub(crate) claims: Box<[ClaimName]>,
    pub(crate) left: Option<Symbol>,
}

/// One claim by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimName {
    pub(crate) claim: Option<Symbol>,
    pub(crate) generated: bool,
}

impl ClaimedDevices {
    pub(super) fn compile(claims: &PodClaims, names: &mut Interner) -> Self {
        ClaimedDevices {
            pod: names.intern(&claims.pod),
            uid: names.intern(&claims.uid),
            claims: claims
                .claims
                .iter()
                .map(|own| ClaimName {
                    claim: own.claim.as_deref().map(|claim| names.intern(claim)),
                    generated: own.generated,
                })
                .collect(),
            left: claims.left.as_deref().map(|claim| names.intern(claim)),
        }
    }
}

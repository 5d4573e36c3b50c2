//! The ResourceClaims of a pod, compiled to names. The claim objects can change while the class stays the same, so
//! they are looked up in [`crate::devices`] when a pod is scheduled.

use crate::intern::{Interner, Symbol};
use crate::model::PodClaims;

/// The ResourceClaims that a pod refers to.
#[derive(Clone, Debug)]
pub(crate) struct ClaimedDevices {
    pub(crate) pod: Symbol,
    pub(crate) uid: Symbol,
    pub(crate) claims: Box<[ClaimName]>,
    pub(crate) left: Option<Symbol>,
}

/// One ResourceClaim by its namespace and name.
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

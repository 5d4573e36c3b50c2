//! kube-scheduler: NodeDeclaredFeatures. The kubelet must declare the features that the pod needs
//! (`status.declaredFeatures`).

use crate::class::Features;
use crate::reason::Reason;

pub(crate) fn check(needed: Features, declared: Features) -> Option<Reason> {
    let feature = needed.first_missing(declared)?;
    Some(Reason::FeatureMissing { feature })
}

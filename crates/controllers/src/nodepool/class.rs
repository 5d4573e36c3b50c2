//! The status of EC2NodeClasses: resolves their selectors, and decides whether nodes can be launched.
//!
//! Invariant: `Ready` is `True` only if subnets, security groups and images were found. They are written into the
//! status, and launches use the status. A class that claims use is not removed before them ([`finalizer`]).

mod finalizer;
mod validation;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    ami::{AmiFamily, WindowsRelease},
    eksctl::KubernetesVersion,
    karpenter::{
        AmiStatus, CapacityReservation as ReservationStatus, EC2NodeClass, EC2NodeClassSpec,
        EC2NodeClassStatus, Requirement, SecurityGroupStatus, SubnetStatus,
    },
    labels,
};
use mullion_cloud::{
    CapacityReservation, CloudError, CloudProvider, PlacementGroup, SecurityGroup, SelectedImages,
    Subnet, TagSelector, family_of, image::NodeImage,
};
use serde_json::{Value, json};

use super::{
    annotate,
    ignored_fields::{self, IgnoredField},
    stamp::Stamp,
};
use crate::{
    Change, Queue, api_error,
    provisioner::{
        BY_CLASS, KarpenterContext,
        conditions::{Conditions, Status},
        market::MarketError,
        reserved::EXPIRING,
    },
    queue::Backoff,
};
use validation::{DryRunCache, Verdict};

/// How often the selectors are resolved again.
const REFRESH: Duration = Duration::from_secs(60);
/// The delays after failures (operatorpkg: `reasonable.RateLimiter`).
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(60),
};
const SUBNETS: &str = "SubnetsReady";
const SECURITY_GROUPS: &str = "SecurityGroupsReady";
const AMIS: &str = "AMIsReady";
const INSTANCE_PROFILE: &str = "InstanceProfileReady";
const VALIDATION: &str = "ValidationSucceeded";
const CAPACITY_RESERVATIONS: &str = "CapacityReservationsReady";
const PLACEMENT_GROUP: &str = "PlacementGroupReady";

/// Why a class could not be reconciled.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    #[error("validation, {0}")]
    Trial(#[from] MarketError),
}

pub(super) fn start(karpenter: &KarpenterContext) {
    let queue = Queue::with_backoff("nodeclass", BACKOFF);
    let classes = queue.clone();
    karpenter
        .classes
        .on_change(move |change| classes.add(change.object().name_any()));
    let classes = queue.clone();
    karpenter.claims.on_change(move |change| {
        if let Change::Deleted(claim) = change {
            classes.add(claim.spec.node_class_ref.name.clone());
        }
    });
    let karpenter = karpenter.clone();
    let context = karpenter.base.clone();
    let again = queue.clone();
    let trials = Arc::new(DryRunCache::default());
    queue.run(&context, 2, move |name: String| {
        let (karpenter, again, trials) = (karpenter.clone(), again.clone(), trials.clone());
        async move {
            if let Some(delay) = reconcile(&karpenter, &trials, &name).await? {
                again.add_after(name, delay);
            }
            Ok::<_, Error>(())
        }
    });
}

/// Updates the status of a class. Returns when to reconcile it again if nothing changes.
async fn reconcile(
    karpenter: &KarpenterContext,
    trials: &DryRunCache,
    name: &str,
) -> Result<Option<Duration>, Error> {
    let Some(class) = karpenter.classes.get("", name) else {
        trials.forget(name);
        return Ok(None);
    };
    if class.metadata.deletion_timestamp.is_some() {
        return Ok(finalizer::remove(karpenter, &class).await?);
    }
    // Before the class can become ready: from then on claims may use it.
    finalizer::add(karpenter, &class).await?;
    let SelectedImages {
        images,
        is_fallback,
    } = images(karpenter, &class.spec).await?;
    let gates = karpenter.options.gates;
    let ignored = if karpenter.cloud.heeds_machine_settings() {
        let reservations = ignored_fields::of_reservations(&class.spec, gates);
        reservations.into_iter().collect()
    } else {
        ignored_fields::of_node_class(&class.spec, is_fallback, gates)
    };
    let found = SelectedResources {
        subnets: karpenter
            .cloud
            .subnets(&subnet_selectors(&class.spec))
            .await?,
        security_groups: karpenter
            .cloud
            .security_groups(&group_selectors(&class.spec))
            .await?,
        images,
        reservations: reservations(karpenter, &class.spec).await?,
        placement_group: placement_group(&*karpenter.cloud, &class.spec).await?,
        instance_profile: karpenter
            .cloud
            .instance_profile(&class, &karpenter.options.cluster)
            .await,
        ignored,
    };
    let next_end = next_end(&found);
    // Read after the calls to the cloud, which may take long.
    let now = karpenter.base.clock.now();
    let options = &karpenter.options;
    let mut resolved = EC2NodeClass::clone(&class);
    resolved.status = Some(status_of(&class, found, options.version, now));
    let judgement = trials.judge(karpenter, &resolved).await;
    let mut status = resolved.status.unwrap_or_default();
    conclude(
        &mut status,
        judgement.verdict,
        now,
        class.metadata.generation,
    );
    let api = karpenter.class_api();
    if class.status.as_ref() != Some(&status) {
        let mut patch = json!({ "status": status });
        if status.capacity_reservations.is_empty() {
            // A merge patch keeps lists that it omits, so an empty list has to be set to null.
            patch["status"]["capacityReservations"] = Value::Null;
        }
        let patch = Patch::Merge(patch);
        let patched = api
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        api_error::ignore_not_found(patched)?;
    }
    // Renewing stamps needs all claims of the class; with half of them the others would count as drifted.
    if karpenter.claims.synced().await {
        let hash = Stamp::of_class(&class.spec);
        let claims = karpenter.claims.by_index(BY_CLASS, name);
        hash.renew(karpenter, &*class, &claims).await?;
        annotate(&api, &*class, hash.annotations()).await?;
    }
    if let Some(error) = judgement.retry {
        return Err(error.into());
    }
    let until_end = next_end.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    Ok(Some(until_end.map_or(REFRESH, |until| until.min(REFRESH))))
}

/// The objects in the cloud that a class selects.
struct SelectedResources {
    subnets: Vec<Subnet>,
    security_groups: Vec<SecurityGroup>,
    /// The images that the class selects.
    images: Vec<NodeImage>,
    /// The capacity reservations that the class selects; `None` if the feature gate is off.
    reservations: Option<Vec<CapacityReservation>>,
    /// The placement group that the class selects.
    placement_group: Option<PlacementGroup>,
    /// The name of the instance profile, or why there is none.
    instance_profile: Result<String, CloudError>,
    /// Fields of the class that have no effect.
    ignored: Vec<IgnoredField>,
}

/// Returns the capacity reservations that a class selects; `None` if the feature gate is off.
async fn reservations(
    karpenter: &KarpenterContext,
    spec: &EC2NodeClassSpec,
) -> Result<Option<Vec<CapacityReservation>>, CloudError> {
    let terms = &spec.capacity_reservation_selector_terms;
    match (karpenter.options.gates.reserved_capacity, terms.is_empty()) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(Vec::new())),
        (true, false) => Ok(Some(karpenter.cloud.capacity_reservations(terms).await?)),
    }
}

/// Returns when the first of the reservations ends.
fn next_end(found: &SelectedResources) -> Option<Timestamp> {
    let ends = found.reservations.iter().flatten();
    ends.filter_map(|own| own.ends_at).min()
}

fn subnet_selectors(spec: &EC2NodeClassSpec) -> Vec<TagSelector> {
    let terms = spec.subnet_selector_terms.iter();
    terms
        .map(|term| TagSelector {
            tags: term.tags.clone(),
            id: term.id.clone(),
            name: None,
        })
        .collect()
}

fn group_selectors(spec: &EC2NodeClassSpec) -> Vec<TagSelector> {
    let terms = spec.security_group_selector_terms.iter();
    terms
        .map(|term| TagSelector {
            tags: term.tags.clone(),
            id: term.id.clone(),
            name: term.name.clone(),
        })
        .collect()
}

/// Computes the status of a class, except for the conditions that [`conclude`] sets.
fn status_of(
    class: &EC2NodeClass,
    found: SelectedResources,
    version: KubernetesVersion,
    now: Timestamp,
) -> EC2NodeClassStatus {
    let mut status = class.status.clone().unwrap_or_default();
    let images = family(&class.spec, version)
        .map(|_| found.images.into_iter().map(ami_status).collect::<Vec<_>>());
    let mut conditions = Conditions::new(&mut status.conditions, now, class.metadata.generation);
    let mut judge = |kind: &str, refused: Option<(&str, String)>| match refused {
        None => conditions.set_true(kind),
        Some((reason, message)) => {
            conditions.set(kind, Status::False, reason, &message);
        }
    };
    let none = |empty: bool, reason: &'static str, message: &str| {
        empty.then(|| (reason, message.to_owned()))
    };
    judge(
        SUBNETS,
        none(
            // Every condition is set in every round, so that a selector which matches again clears its error.
            found.subnets.is_empty(),
            "SubnetsNotFound",
            "SubnetSelector did not match any Subnets",
        ),
    );
    judge(
        SECURITY_GROUPS,
        none(
            found.security_groups.is_empty(),
            "SecurityGroupsNotFound",
            "SecurityGroupSelector did not match any SecurityGroups",
        ),
    );
    let no_image = match &images {
        Ok(images) => images.is_empty().then(|| ImageError::NoMatch.to_string()),
        Err(error) => Some(error.to_string()),
    };
    let no_profile = found.instance_profile.as_ref().err();
    judge(AMIS, no_image.map(|message| ("AMINotFound", message)));
    judge(
        INSTANCE_PROFILE,
        no_profile.map(|error| ("InstanceProfileNotReady", error.to_string())),
    );
    if found.reservations.is_some() {
        judge(CAPACITY_RESERVATIONS, None);
    }
    let group = found.placement_group.as_ref();
    judge(PLACEMENT_GROUP, missing_placement_group(&class.spec, group));
    ignored_fields::set_condition(&mut conditions, &found.ignored);
    if found.reservations.is_none() {
        conditions.clear(CAPACITY_RESERVATIONS);
    }
    let reservations = found.reservations.unwrap_or_default().into_iter();
    status.capacity_reservations = reservations
        .map(|own| reservation_status(own, now))
        .collect();
    status.capacity_reservations.sort_by(|a, b| a.id.cmp(&b.id));
    status.amis = images.unwrap_or_default();
    // A profile that was found before stays: running nodes use it even while IAM does not answer.
    if let Ok(profile) = found.instance_profile {
        status.instance_profile = profile;
    }
    let group = |group: SecurityGroup| SecurityGroupStatus {
        id: group.id.to_string(),
        name: group.name,
    };
    status.security_groups = found.security_groups.into_iter().map(group).collect();
    let subnet = |subnet: Subnet| SubnetStatus {
        id: subnet.id.to_string(),
        zone: subnet.zone.to_string(),
        zone_id: subnet.zone_id.to_string(),
    };
    status.subnets = found.subnets.into_iter().map(subnet).collect();
    // Sorted by zone, not by free addresses: otherwise each launch would reorder the list and rewrite every class.
    status
        .subnets
        .sort_by(|a, b| (&a.zone, &a.id).cmp(&(&b.zone, &b.id)));
    status
}

/// Sets `ValidationSucceeded`, and `Ready` from all conditions of a class.
fn conclude(
    status: &mut EC2NodeClassStatus,
    verdict: Verdict,
    now: Timestamp,
    generation: Option<i64>,
) {
    let mut summarized = vec![
        AMIS,
        INSTANCE_PROFILE,
        PLACEMENT_GROUP,
        SECURITY_GROUPS,
        SUBNETS,
        VALIDATION,
    ];
    let mut kinds = status.conditions.iter().map(|own| own.type_.as_str());
    if kinds.any(|kind| kind == CAPACITY_RESERVATIONS) {
        summarized.insert(1, CAPACITY_RESERVATIONS);
    }
    let mut conditions = Conditions::new(&mut status.conditions, now, generation);
    match verdict {
        Verdict::Valid => conditions.set_true(VALIDATION),
        Verdict::Invalid { reason, message } => {
            conditions.set(VALIDATION, Status::False, reason, &message);
        }
        Verdict::Open => conditions.initialize(&[VALIDATION]),
    }
    conditions.summarize(&summarized);
}

/// Returns a capacity reservation in the form of a class's status.
pub fn reservation_status(own: CapacityReservation, now: Timestamp) -> ReservationStatus {
    let state = if own.is_expiring(now) {
        EXPIRING
    } else {
        "active"
    };
    ReservationStatus {
        availability_zone: own.zone,
        end_time: own.ends_at.map(Time),
        id: own.reservation.id.to_string(),
        instance_match_criteria: own.match_criteria.as_str().to_owned(),
        instance_type: own.instance_type,
        interruptible: Some(own.reservation.interruptible),
        owner_id: own.owner_id,
        reservation_type: Some(own.reservation.kind.as_str().to_owned()),
        state: Some(state.to_owned()),
    }
}

/// Returns the placement group that a class selects.
pub(crate) async fn placement_group(
    cloud: &dyn CloudProvider,
    spec: &EC2NodeClassSpec,
) -> Result<Option<PlacementGroup>, CloudError> {
    match &spec.placement_group_selector {
        Some(selector) => cloud.placement_group(selector).await,
        None => Ok(None),
    }
}

/// Returns an error if the class selects a placement group that was not found.
fn missing_placement_group(
    spec: &EC2NodeClassSpec,
    found: Option<&PlacementGroup>,
) -> Option<(&'static str, String)> {
    let group = spec.placement_group_selector.as_ref()?;
    if found.is_some() {
        return None;
    }
    let name = group.name.as_deref().or(group.id.as_deref());
    let message = format!("Placement group {:?} not found", name.unwrap_or_default());
    Some(("PlacementGroupNotFound", message))
}

/// Returns the images that a class selects; empty if nodes of its family cannot be launched.
async fn images(
    karpenter: &KarpenterContext,
    spec: &EC2NodeClassSpec,
) -> Result<SelectedImages, CloudError> {
    let version = karpenter.options.version;
    match family(spec, version) {
        Ok(family) => {
            let terms = &spec.ami_selector_terms;
            karpenter.cloud.images(terms, family, version).await
        }
        Err(_) => Ok(SelectedImages {
            images: Vec::new(),
            is_fallback: false,
        }),
    }
}

/// The reason why no image suits a class.
#[derive(Debug, thiserror::Error)]
enum ImageError {
    /// The class selects no image.
    #[error("AMISelector did not match any AMIs")]
    NoMatch,
    /// The cluster is too old for nodes with Windows Server 2025.
    #[error("Windows Server 2025 requires EKS version 1.35 or higher")]
    TooNew,
}

/// Returns the image family of a class whose nodes can be launched.
fn family(spec: &EC2NodeClassSpec, version: KubernetesVersion) -> Result<AmiFamily, ImageError> {
    let family = family_of(spec).ok_or(ImageError::NoMatch)?;
    if family.windows_release() == Some(WindowsRelease::V2025) && version.minor() < 35 {
        return Err(ImageError::TooNew);
    }
    Ok(family)
}

fn ami_status(image: NodeImage) -> AmiStatus {
    let mut requirements = vec![Requirement::is(labels::ARCH, image.arch.as_str())];
    if let Some(build) = image.windows_build() {
        requirements = vec![
            Requirement::is(labels::OS, labels::OS_WINDOWS),
            Requirement::is(labels::WINDOWS_BUILD, build),
        ];
    }
    requirements.extend(image.variant.requirements());
    AmiStatus {
        id: image.id,
        deprecated: false,
        name: image.name,
        requirements,
    }
}

#[cfg(test)]
mod tests {
    use mullion_cloud::catalogue::Arch;

    use super::*;

    fn class(spec: serde_json::Value) -> EC2NodeClass {
        let class = json!({ "metadata": { "name": "c" }, "spec": spec });
        serde_json::from_value(class).expect("a class")
    }

    fn found() -> SelectedResources {
        SelectedResources {
            placement_group: None,
            subnets: vec![Subnet {
                id: "subnet-1".into(),
                zone: "us-west-2a".into(),
                zone_id: "usw2-az1".into(),
                cidr: "10.0.0.0/18".into(),
                free_addresses: 5,
                tags: Default::default(),
            }],
            security_groups: vec![SecurityGroup {
                id: "sg-1".into(),
                name: "node".into(),
                tags: Default::default(),
            }],
            images: vec![NodeImage::new(
                AmiFamily::from_karpenter("Windows2022").expect("known"),
                KubernetesVersion::NEWEST,
                Arch::Amd64,
            )],
            reservations: Some(Vec::new()),
            instance_profile: Ok("demo_c".to_owned()),
            ignored: Vec::new(),
        }
    }

    fn judged(class: &EC2NodeClass, found: SelectedResources, minor: u32) -> EC2NodeClassStatus {
        let version = KubernetesVersion::from_minor(minor).expect("known");
        let now = Timestamp::UNIX_EPOCH;
        let mut resolved = class.clone();
        resolved.status = Some(status_of(class, found, version, now));
        let verdict = validation::static_error(&resolved, version);
        let mut status = resolved.status.expect("just set");
        conclude(&mut status, verdict.unwrap_or(Verdict::Valid), now, None);
        status
    }

    fn condition<'a>(status: &'a EC2NodeClassStatus, kind: &str) -> (&'a str, &'a str) {
        let found = status.conditions.iter().find(|c| c.type_ == kind);
        let found = found.expect("set");
        (found.status.as_str(), found.message.as_str())
    }

    #[test]
    fn a_class_whose_selectors_match_is_ready() {
        let status = judged(&class(json!({ "amiFamily": "Windows2022" })), found(), 27);
        assert_eq!(condition(&status, "Ready"), ("True", ""));
        assert_eq!(status.subnets[0].zone, "us-west-2a");
        assert_eq!(status.amis.len(), 1);
        let build = &status.amis[0].requirements[1];
        assert_eq!(build.values, ["10.0.20348"]);
        assert_eq!(status.instance_profile, "demo_c");
    }

    #[test]
    fn what_is_missing_is_said_in_upstreams_words() {
        let nothing = SelectedResources {
            placement_group: None,
            subnets: Vec::new(),
            security_groups: Vec::new(),
            images: found().images,
            reservations: Some(Vec::new()),
            instance_profile: Ok("demo_c".to_owned()),
            ignored: Vec::new(),
        };
        let status = judged(&class(json!({ "amiFamily": "AL2023" })), nothing, 31);
        assert_eq!(
            condition(&status, SUBNETS),
            ("False", "SubnetSelector did not match any Subnets")
        );
        assert_eq!(
            condition(&status, "Ready"),
            (
                "False",
                "SecurityGroupsReady=False, SubnetsReady=False, ValidationSucceeded=False"
            )
        );
    }

    #[test]
    fn a_placement_group_that_is_not_there_keeps_a_class_from_being_ready() {
        let class = class(json!({
            "amiFamily": "AL2023", "placementGroupSelector": { "name": "training" }
        }));
        let status = judged(&class, found(), 31);
        assert_eq!(
            condition(&status, PLACEMENT_GROUP),
            ("False", "Placement group \"training\" not found")
        );
        assert_eq!(
            condition(&status, "Ready"),
            ("False", "PlacementGroupReady=False")
        );
    }

    #[test]
    fn windows_2025_needs_a_recent_kubernetes() {
        let class = class(json!({ "amiSelectorTerms": [{ "alias": "windows2025@latest" }] }));
        let status = judged(&class, found(), 34);
        assert_eq!(
            condition(&status, AMIS),
            (
                "False",
                "Windows Server 2025 requires EKS version 1.35 or higher"
            )
        );
        assert_eq!(condition(&judged(&class, found(), 35), AMIS).0, "True");
    }
}

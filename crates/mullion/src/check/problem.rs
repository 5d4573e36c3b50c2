//! Defines what rules can find, as data. Only [`super::text`] turns it into sentences.

use mullion_api::{
    ami::{AmiFamily, FamilyError},
    eksctl::ConfigError,
};
use mullion_engine::images::System;
use std::fmt;

use super::{schemas::Refusal, subject::Container};

/// An image, as sentences name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) name: String,
    /// Whether what is said about the image is guessed from its name.
    pub(super) guess: bool,
}

impl Image {
    /// Returns the image of a container.
    pub(super) fn of(container: Option<&Container<'_>>) -> Self {
        let fact = container.and_then(|container| container.fact.as_ref());
        Image {
            name: container
                .map(|container| container.image)
                .unwrap_or_default()
                .to_owned(),
            guess: fact.is_some_and(|fact| fact.guess),
        }
    }
}

/// With the flag `#`, the text says so if the sentence is based on the image's name.
impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Microsoft's registry and the digest do not help the reader of a sentence.
        let name = self
            .name
            .strip_prefix("mcr.microsoft.com/")
            .unwrap_or(&self.name);
        let name = name.split('@').next().unwrap_or_default();
        match name {
            "" => f.write_str("an image without a name"),
            name if self.guess && f.alternate() => write!(f, "image {name} (by its name)"),
            name => write!(f, "image {name}"),
        }
    }
}

/// Returns the words separated by commas, with `last` before the last one.
pub(super) fn joined(words: impl Iterator<Item = String>, last: &str) -> String {
    let words: Vec<_> = words.collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

/// What a label value leads to that no node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelEffect {
    /// Required: the pod stays Pending.
    Pending,
    /// Preferred: the preference counts for nothing.
    NotPreferred,
    /// Excluded: nothing is excluded.
    NotExcluded,
    /// One of several values: the others count alone.
    OtherValuesCount,
    /// In one of several terms, which are alternatives: the others count alone.
    OtherTermsCount,
    /// Required by a NodePool: nothing is bought.
    NothingBought,
    /// Named by a ClusterConfig: no subnet is there, and none can be made.
    NoSubnet,
}

/// Why no node of a cluster is in a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZoneFault {
    /// The zone is of a region other than those of the cluster.
    OtherRegion {
        own: &'static str,
        cluster: Vec<String>,
    },
    /// The regions of the cluster have no such zone.
    NoZone { cluster: Vec<String> },
    /// There are subnets in these zones and none in the zone: those of a class, or those of the ClusterConfig.
    NoSubnet {
        class: Option<String>,
        zones: Vec<String>,
    },
}

/// A problem that a rule found.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Problem {
    DaemonEverywhere {
        image: Image,
        system: System,
    },
    MayLandOnLinux {
        image: Image,
    },
    ToleratesEverything {
        image: Image,
    },
    NearWindows {
        image: Image,
        group: String,
        known: bool,
    },
    WrongSystem {
        image: Image,
        wants: System,
        chosen: System,
    },
    WindowsOnArm,
    TwoSystems {
        linux: Image,
        windows: Image,
    },
    WrongArchitecture {
        image: Image,
        has: String,
        chosen: String,
    },
    UsualTaint {
        taint: String,
    },
    Untolerated {
        taint: String,
        groups: usize,
    },
    BetaLabel {
        beta: &'static str,
        stable: &'static str,
    },
    OsNameAgainstChoice {
        named: System,
        chosen: System,
    },
    OsNameAlone {
        named: System,
    },
    OsNameMissing,
    WebhookIsBlind {
        by_build: bool,
    },
    OnlyPreferred {
        system: System,
    },
    CountsTainted {
        key: String,
        group: String,
    },

    WrongBuild {
        image: Image,
        needs: String,
        selected: String,
    },
    AnyBuild {
        image: Image,
        needs: String,
        lands: String,
        none: bool,
    },
    BuildForm {
        text: String,
    },
    EndedBuild {
        image: Image,
        build: String,
    },
    NoSuchHosts {
        image: Image,
        build: String,
    },
    TooEarlyFor2025 {
        image: Option<Image>,
        minor: u32,
    },
    NoTag {
        image: Image,
        /// Whether the name has the tag `latest`; otherwise it has none.
        is_named: bool,
        /// Whether there is no image of this tag.
        is_missing: bool,
        /// The builds that the image is for now; empty if they are not known.
        builds: String,
    },
    VeryLarge {
        image: Image,
        bytes: u64,
    },
    AlwaysPulled {
        image: Image,
        bytes: u64,
    },
    Unversioned {
        image: Image,
    },

    GoneVersion {
        version: String,
    },
    HandlerDocker,
    NoSuchClass {
        class: String,
    },
    ClassConflict {
        class: String,
        key: String,
        pod: String,
        wanted: String,
    },
    ClassLacks {
        missing: Vec<String>,
    },

    NotOnWindows {
        refused: bool,
    },
    OptionsOnLinux,
    HostNetwork,
    HostProcessNeedsNetwork,
    HostProcessMixed {
        container: String,
    },
    HostProcessLevel {
        namespace: String,
        level: String,
    },
    UserName {
        user: String,
        why: &'static str,
    },
    AdministratorAsNonRoot,
    SystemAccount {
        user: String,
    },
    MemoryVolume {
        medium: String,
    },
    UnixPath {
        path: String,
    },
    BlockDevice,
    Propagation {
        mode: String,
    },
    RootMount {
        path: String,
    },
    HugePages {
        name: String,
    },
    WrongShell {
        shell: String,
        image: Image,
        system: System,
    },
    Device {
        name: String,
    },
    TargetContainer,
    NoCredential {
        name: String,
    },
    /// The pod's service account lacks the permission `use` for the credential spec.
    MayNotUse {
        account: String,
        name: String,
    },
    CredentialWithoutName,

    NoMemoryLimit {
        container: String,
    },
    TooLittleMemory {
        image: Image,
        bytes: u64,
        least: u64,
    },
    TooLittleCpu {
        milli: u64,
    },
    SmallType {
        name: String,
    },
    SmallReserve,
    TooFewAddresses {
        pods: u64,
        addresses: u64,
        prefixes: bool,
    },
    TooManyBackends {
        pods: u64,
        most: u64,
    },
    TooManyServices {
        services: usize,
    },
    ImpatientProbe {
        probe: &'static str,
        seconds: u64,
    },
    AddressRequest {
        value: String,
    },
    AddressAnnotation,

    SilentLogs {
        image: Image,
    },
    LogMonitor {
        why: String,
    },
    ShortName {
        name: String,
        namespace: String,
    },
    Ipv6 {
        pods: String,
    },
    CustomNetworking,
    SecurityGroups {
        pods: String,
    },
    Fargate {
        pods: String,
    },
    HostsCannotReach {
        field: &'static str,
        value: String,
        pods: String,
    },

    NoLinuxGroup,
    NoProxyGroup {
        role: String,
    },
    Untainted {
        group: String,
        pods: String,
    },
    TaintMap,
    Effect {
        effect: String,
    },
    Family {
        refusal: FamilyError,
    },
    /// An instance type cannot run the images of its node group.
    CannotRun {
        name: String,
        family: AmiFamily,
    },
    KubeletConfig,
    /// eksctl refuses the file.
    EksctlRefuses {
        /// The command that refuses the file.
        by: &'static str,
        /// eksctl's message.
        words: String,
    },
    /// `mullion up` refuses the file.
    NotSimulated {
        mistake: ConfigError,
    },
    FamilyAgainstPool {
        class: String,
        family: System,
        required: System,
    },
    PoolOnArm,
    AutoMode,
    NoWindowsTypes {
        types: String,
    },
    NoPrefixTypes {
        types: String,
    },
    PoolWithoutSystem {
        pool: String,
    },
    IpamMissing,
    NotBoolean {
        key: &'static str,
        value: String,
    },
    PrefixesAlone,
    NotNumber {
        key: String,
        value: String,
    },
    NegativeTarget {
        key: String,
        value: i64,
    },
    TwoTargets {
        key: &'static str,
    },
    OnlyMinimum {
        key: String,
    },
    TargetsContradict,
    OldKarpenter {
        provisioner: bool,
    },
    /// An object of Karpenter's version v1beta1.
    BetaKarpenter {
        kind: String,
    },
    /// What differs between Karpenter's v1beta1 and v1.
    BetaField {
        what: &'static str,
        advice: &'static str,
    },
    /// A limit of a NodePool for a resource that no node has.
    UnknownLimit {
        name: String,
        near: Option<&'static str>,
    },
    /// A NodePool names a kind of node class that its group does not have.
    NoClassKind {
        group: String,
        kind: String,
        /// The group and the kind that go together.
        meant: (&'static str, &'static str),
    },
    /// A pool or a node group names an instance type, a family or a size that is not known.
    UnlistedType {
        /// What the value is, such as `instance type`.
        label: &'static str,
        value: String,
        near: Vec<&'static str>,
        /// Whether all values beside it are unlisted too.
        is_alone: bool,
    },
    /// Karpenter finds a NodePool invalid.
    InvalidPool {
        /// Karpenter's words.
        why: String,
    },
    /// Values in a NodePool's requirement that no node has, beside others.
    IgnoredValues {
        label: String,
        values: String,
    },
    UnknownField {
        /// The field as API servers name it.
        name: String,
        /// The field that may have been meant.
        near: Option<String>,
        /// Whether eksctl reads the file; otherwise an API server reads the object.
        is_of_eksctl: bool,
    },
    Misfit {
        kind: String,
        version: String,
        /// The value, as in `the text "3"`.
        value: String,
        /// What the field takes, if it is known.
        expected: Option<&'static str>,
        refusal: Refusal,
    },
    /// The API server refuses the object.
    Refused {
        /// The field as the API server names it.
        field: String,
        /// The API server's message about the field.
        why: String,
        /// The allowed value that may have been meant.
        near: Option<String>,
        is_missing: bool,
    },
    /// The API server takes the object and warns.
    Warned {
        text: String,
    },
    /// A kubelet cannot read the name of an image.
    InvalidImage {
        /// The kubelet's message.
        why: String,
    },
    Nameless {
        /// The field that is missing: `kind` or `apiVersion`.
        lacks: &'static str,
        /// The API version in which the kind is.
        near: Option<&'static str>,
    },
    /// A key of the envelope in other letters.
    Misspelt {
        key: String,
        /// The field that is meant.
        field: &'static str,
    },
    LabelValue {
        key: &'static str,
        value: String,
        /// What the value leads to.
        effect: LabelEffect,
    },
    /// The root volume of Windows nodes is smaller than the snapshot of their images.
    SmallVolume {
        size: String,
        least_gib: u64,
    },
    /// No node of the cluster is in a zone.
    NoSuchZone {
        zone: String,
        fault: ZoneFault,
        /// What the zone leads to.
        effect: LabelEffect,
    },
    OsName {
        value: String,
    },
    NoSuchKind {
        kind: String,
        version: String,
        /// What may have been meant, as a sentence.
        near: Option<String>,
    },
}

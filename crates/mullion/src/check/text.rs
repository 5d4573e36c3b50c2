//! Words the findings: what is wrong, and what the user can do if no fix is written.

use mullion_engine::images::System;

use super::{
    fleet::OLD_BACKENDS,
    path::{Path, Step},
    problem::{Image, LabelEffect, Problem, ZoneFault, joined},
    schemas::Refusal,
    yaml::edit::Edit,
};

impl Problem {
    /// Returns what is wrong as a sentence without its full stop. `at` is the place of the finding.
    #[rustfmt::skip]
    pub(super) fn text(&self, at: &Path) -> String {
        use Problem::*;
        let field = last_key(at);
        match self {
            DaemonEverywhere { image, system } => format!("{image:#} runs on {system} only, and the DaemonSet is sent to every node"),
            MayLandOnLinux { image } => format!("{image:#} runs on Windows only, and the pod may land on Linux"),
            ToleratesEverything { image } => format!("no operating system is chosen and every taint is tolerated: {image:#} may land on Windows nodes"),
            NearWindows { image, group, known: true } => format!("{image:#} runs on Linux only, and the pod may land on the Windows nodes of {group}"),
            NearWindows { image, group, known: false } => format!("no operating system is chosen, and nothing is known of {image:#}: the pod may land on the Windows nodes of {group}"),
            WrongSystem { image, wants, chosen } => format!("{image:#} runs on {wants} only, and the pod chooses {chosen}"),
            WindowsOnArm => "the pod chooses Windows and arm64: EKS has Windows for amd64 only".to_owned(),
            TwoSystems { linux, windows } => format!("{linux:#} runs on Linux only and {windows:#} on Windows only: no node runs both"),
            WrongArchitecture { image, has, chosen } => format!("{image} is for {has}, and the pod chooses {chosen}"),
            UsualTaint { taint } => format!("the pod chooses Windows and does not tolerate {taint}, the usual taint of Windows nodes"),
            Untolerated { taint, groups: 1 } => format!("the pod chooses Windows and does not tolerate {taint} of the only Windows nodes: it stays Pending"),
            Untolerated { taint, groups } => format!("the pod chooses Windows and is kept off by taints of all {groups} groups of Windows nodes ({taint}): it stays Pending"),
            BetaLabel { beta, stable } => format!("{beta} is deprecated: {stable} replaced it"),
            OsNameAgainstChoice { named, chosen } => format!("spec.os.name is {}, and the pod chooses {chosen}: the kubelet refuses it", named.as_str()),
            OsNameAlone { named } => format!("spec.os.name is {}, and nothing chooses nodes of {named}: the scheduler ignores spec.os", named.as_str()),
            OsNameMissing => "spec.os.name is missing: fields that Windows does not have are ignored instead of refused".to_owned(),
            WebhookIsBlind { by_build: false } => "Windows is chosen by node affinity only: EKS's webhook reads the node selector, and the pod gets no address".to_owned(),
            WebhookIsBlind { by_build: true } => "Windows is chosen by its build only: EKS's webhook reads kubernetes.io/os of the node selector, and the pod gets no address".to_owned(),
            OnlyPreferred { system } => format!("{system} is preferred, not required: the pod lands on {} when no such node is free", system.other()),
            CountsTainted { key, group } => format!("the spread over {key} counts the tainted nodes of {group}, where the pod cannot go"),

            WrongBuild { image, needs, selected } => format!("{image:#} needs build {needs}, and the pod selects {selected}"),
            AnyBuild { image, needs, lands, none: false } => format!("{image:#} needs build {needs}; the pod may land on {lands}"),
            AnyBuild { image, needs, lands, none: true } => format!("{image:#} needs build {needs}, and there are only nodes of {lands}"),
            BuildForm { text } => format!("{text:?} is no Windows build of a node label: it has three numbers, such as 10.0.20348"),
            EndedBuild { image, build } => format!("{image:#} is of build {build}, whose support has ended, and EKS has no nodes for it"),
            NoSuchHosts { image, build } => format!("{image:#} is of build {build}, and EKS has no nodes that run it"),
            TooEarlyFor2025 { image: Some(image), minor } => format!("{image} needs Windows Server 2025: EKS has it from Kubernetes 1.35 on, and this cluster is 1.{minor}"),
            TooEarlyFor2025 { image: None, minor } => format!("EKS has Windows Server 2025 from Kubernetes 1.35 on, and this cluster is 1.{minor}"),
            NoTag { image, is_named, is_missing, builds } => no_tag(image, *is_named, *is_missing, builds),
            VeryLarge { image, bytes } => format!("{image} is {} to pull, and no AMI keeps it on disk: minutes on every new node", gigabytes(*bytes)),
            AlwaysPulled { image, bytes } => format!("{image} is {} and imagePullPolicy is Always", gigabytes(*bytes)),
            Unversioned { image } => format!("{image} has a Windows entry without os.version: it is pulled on every build and may not start"),

            GoneVersion { version } => format!("{version} is gone since Kubernetes 1.25"),
            HandlerDocker => "the handler docker is gone since Kubernetes 1.24".to_owned(),
            NoSuchClass { class } => format!("there is no RuntimeClass {class}: the pod is refused"),
            ClassConflict { class, key, pod, wanted } => format!("the pod selects {key} {pod} and its RuntimeClass {class} selects {wanted}: it is refused"),
            ClassLacks { missing } => format!("a RuntimeClass for Windows without {}", joined(missing.iter().cloned(), "and")),

            NotOnWindows { refused: true } => format!("Windows has no {field}: with spec.os.name windows the API server refuses the pod"),
            NotOnWindows { refused: false } => format!("Windows has no {field}: it is ignored, and refused once spec.os.name is windows"),
            OptionsOnLinux => "a Linux pod has no windowsOptions".to_owned(),
            HostNetwork => "hostNetwork on Windows is for HostProcess pods only".to_owned(),
            HostProcessNeedsNetwork => "a HostProcess pod needs hostNetwork: true".to_owned(),
            HostProcessMixed { container } => format!("container {container} is no HostProcess container, and others of the pod are: all must be"),
            HostProcessLevel { namespace, level } => format!("namespace {namespace} enforces Pod Security level {level}: HostProcess pods need privileged"),
            UserName { user, why } => format!("runAsUserName {user:?}: {why}"),
            AdministratorAsNonRoot => "ContainerAdministrator counts as root, and runAsNonRoot is true: the container does not start".to_owned(),
            SystemAccount { user } => format!("{user} is an account of the system, meant for HostProcess containers"),
            MemoryVolume { medium } => format!("Windows has no volumes in memory (medium {medium})"),
            UnixPath { path } => format!("a Windows host has no {path}"),
            BlockDevice => "Windows containers have no block devices".to_owned(),
            Propagation { mode } => format!("Windows has no mount propagation ({mode})"),
            RootMount { path } => format!("nothing can be mounted on {path} of a Windows container"),
            HugePages { name } => format!("Windows has no huge pages ({name})"),
            WrongShell { shell, image, system } => format!("{image:#} runs on {system}, which has no {shell}"),
            Device { name } => format!("no device plugin gives a Windows node {name}: the pod stays Pending"),
            TargetContainer => "containers on Windows cannot share processes: targetContainerName has no effect".to_owned(),
            NoCredential { name } => format!("there is no GMSACredentialSpec {name}: the pod is refused"),
            MayNotUse { account, name } => format!("service account {account} may not use GMSACredentialSpec {name} (verb use): the pod is refused"),
            CredentialWithoutName => "gmsaCredentialSpec without gmsaCredentialSpecName: the GMSA webhook refuses the pod".to_owned(),

            NoMemoryLimit { container } => format!("container {container} has no memory limit: Windows never OOM-kills, the node will page"),
            TooLittleMemory { image, bytes, least } => format!("{} of memory are less than {image} starts with ({})", megabytes(*bytes), megabytes(*least)),
            TooLittleCpu { milli } => format!("a CPU limit of {milli}m is less than a Windows container starts with (100m)"),
            SmallType { name } => format!("{name} has less than 4 GiB of memory, and Windows takes about 2 GiB of it"),
            SmallReserve => "less than 2 GiB are reserved for Windows and its services: pods get what they need, and the node pages".to_owned(),
            TooFewAddresses { pods, addresses, .. } => format!("{pods} pods, and the Windows nodes have {addresses} addresses at most"),
            TooManyBackends { pods, most } => format!("{pods} Windows pods behind a load balancer, which serves at most {most}"),
            TooManyServices { services } => format!("{services} Services and Windows nodes without DSR: kube-proxy runs out of ports there"),
            ImpatientProbe { probe, seconds } => format!("the {probe} kills after {seconds} s: a Windows container may need a minute to start"),
            AddressRequest { value } => format!("a pod has one address, and {value} are asked for: the webhook sets the right request"),
            AddressAnnotation => "a manifest with this annotation is refused: the controller sets it".to_owned(),

            SilentLogs { image } => format!("{image} logs to ETW, the event log or files: kubectl logs shows nothing without LogMonitor.exe"),
            LogMonitor { why } => format!("LogMonitor refuses this configuration: {why}"),
            ShortName { name, .. } => format!("{name} is a short Service name: not every resolver on Windows completes it"),
            Ipv6 { pods } => format!("Windows on EKS has IPv4 only ({pods})"),
            CustomNetworking => "Windows nodes of EKS take no part in custom networking (ENIConfig)".to_owned(),
            SecurityGroups { pods } => format!("Windows on EKS has no security groups for pods ({pods})"),
            Fargate { pods } => format!("the profile selects Windows pods ({pods}), and Fargate runs Linux only"),
            HostsCannotReach { field, value, pods } => format!("{field} {value} over Windows pods ({pods}): Windows hosts themselves cannot reach Services"),

            NoLinuxGroup => "all node groups are Windows: CoreDNS has nowhere to run".to_owned(),
            NoProxyGroup { role } => format!("role {} lacks the group eks:kube-proxy-windows: its Windows nodes are Ready and reach no Service", short_role(role)),
            Untainted { group, pods } => format!("the Windows nodes of {group} have no taint, and {pods} says no operating system"),
            TaintMap => "managed node groups take taints as a list of {key, value, effect}".to_owned(),
            Effect { effect } => format!("effect {effect:?} is not one of NoSchedule, PreferNoSchedule, NoExecute"),
            Family { refusal } => format!("{at}: {refusal}: eksctl refuses the file"),
            CannotRun { name, family } => format!("{name} cannot run {family}: no node of the group comes up on it"),
            EksctlRefuses { by, words } => format!("{by} refuses the file: {words}"),
            NotSimulated { mistake } => format!("{mistake}: mullion up refuses the file"),
            KubeletConfig => "eksctl refuses kubeletExtraConfig on Windows".to_owned(),
            FamilyAgainstPool { class, family, required } => format!("the pool requires {required}, and the images of its class {class} are {family}"),
            PoolOnArm => "the pool requires arm64: EKS has Windows for amd64 only, so nothing can be bought".to_owned(),
            AutoMode => "EKS Auto Mode has no Windows nodes".to_owned(),
            NoWindowsTypes { types } => format!("no Windows node gets addresses on {types}: the VPC resource controller does not know them"),
            NoPrefixTypes { types } => format!("prefix delegation is on, and {types} cannot have prefixes on Windows: nodes stay at single addresses"),
            PoolWithoutSystem { pool } => format!("NodePool {pool} does not say its system: Karpenter counts the Windows DaemonSets on it too"),
            IpamMissing => "enable-windows-ipam is missing: Windows pods get no addresses".to_owned(),
            NotBoolean { key, value } => format!("{key}: {value:?} is not a boolean and counts as false"),
            PrefixesAlone => "prefix delegation without enable-windows-ipam does nothing".to_owned(),
            NotNumber { key, value } => format!("{key}: {value:?} is not a whole number and counts as 0"),
            NegativeTarget { key, value } => format!("{key}: {value} is negative"),
            TwoTargets { key } => format!("{key} and windows-{key} are both set: the first, which is deprecated, wins"),
            OnlyMinimum { key } => format!("only {key} is set: the warm target is then 0, and pods beyond the minimum wait for ever"),
            TargetsContradict => "warm-prefix-target has no effect beside a warm or minimum target of addresses".to_owned(),
            OldKarpenter { provisioner: true } => "Provisioner is a kind of Karpenter before 0.32; Karpenter 1 does not read it".to_owned(),
            OldKarpenter { provisioner: false } => "AWSNodeTemplate is a kind of Karpenter before 0.32; Karpenter 1 does not read it".to_owned(),

            BetaKarpenter { kind } => format!("Karpenter 1.1 and later do not serve v1beta1 of {kind}: it is not applied, and nothing is bought for it"),
            BetaField { what, .. } => (*what).to_owned(),
            UnknownLimit { name, .. } => format!("no node has the resource {name}: the limit limits nothing"),
            NoClassKind { group, kind, .. } => format!("{group} has no node class of kind {kind}: Karpenter buys nothing for the pool"),

            UnlistedType { label, value, is_alone: true, .. } => format!("this version does not know the {label} {value}: unless EC2 has it, no node comes up"),
            UnlistedType { label, value, is_alone: false, .. } => format!("this version does not know the {label} {value}: unless EC2 has it, the other values count alone"),

            SmallVolume { size, least_gib } => format!("a root volume of {size} is smaller than the snapshot of EKS's Windows images, {least_gib} GiB: EC2 refuses the instances"),
            NoSuchZone { zone, fault, effect } => no_such_zone(zone, fault, *effect),
            InvalidPool { why } => format!("Karpenter takes the pool and buys nothing for it: {why}"),
            IgnoredValues { label, values } => format!("no node has {label}={values}: Karpenter leaves that out, and the other values count"),

            UnknownField { name, .. } => format!("unknown field {name:?}"),
            Misfit { kind, version, refusal: Refusal::Decoding(why), .. } => format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"),
            Misfit { refusal: Refusal::Validation(why), .. } => why.clone(),
            Misfit { value, expected, refusal: Refusal::Eksctl, .. } => format!("{at} is {value} and takes {}: eksctl refuses the file", expected.unwrap_or("another type")),
            // The path of an object as a whole.
            Refused { field, why, .. } if field == "<nil>" => why.clone(),
            Refused { field, why, .. } => format!("{field}: {why}"),
            Warned { text } => format!("the API server warns: {text}"),
            InvalidImage { why } => format!("{why}: the container stays in InvalidImageName"),
            Nameless { lacks, .. } => format!("the object has no {lacks}: kubectl apply refuses it, and its fields are not checked"),
            Misspelt { key, field } => format!("`{key}` is spelt `{field}`: kubectl apply refuses the object, and its fields are not checked"),
            LabelValue { key, value, effect } if !is_of_kubelet(key) => format!("no node has {key}: {value}, {}", label_effect(*effect)),
            LabelValue { key, value, effect } => format!("no kubelet of Kubernetes writes {key}: {value}, {}", label_effect(*effect)),
            OsName { value } => format!("spec.os.name is {value:?}, and the API server takes linux and windows alone"),
            NoSuchKind { kind, version, .. } => format!("no matches for kind {kind:?} in version {version:?}"),
        }
    }

    /// Returns advice for the user, unless the rule's fix already says it.
    #[rustfmt::skip]
    pub(super) fn advice(&self) -> Option<String> {
        use Problem::*;
        let advice = match self {
            WrongSystem { .. } | TwoSystems { .. } => "give the images pods of their own, or take an image for the pod's system",
            WindowsOnArm | PoolOnArm => "kubernetes.io/arch: amd64",
            OsNameAgainstChoice { .. } => "make both name the system of the images",
            OsNameAlone { named: System::Windows } => "nodeSelector kubernetes.io/os: windows",
            OsNameAlone { named: System::Linux } => "nodeSelector kubernetes.io/os: linux",
            WrongBuild { .. } => "select a build that runs the image, or take the image for the selected build",
            AnyBuild { none: true, .. } => "add nodes of that build, or take the image for a build that is there",
            EndedBuild { .. } | NoSuchHosts { .. } => "rebuild the image on ltsc2022 or ltsc2025",
            TooEarlyFor2025 { .. } => "take Windows Server 2022, or Kubernetes 1.35 or later",
            NoTag { .. } => "name the build in the tag, such as ltsc2022",
            VeryLarge { .. } => "build on windows/servercore or windows/nanoserver where the program allows it",
            Unversioned { .. } => "build with os.version in the index, or select the build that the image is for",
            HandlerDocker => "handler: runhcs-wcow-process",
            ClassConflict { .. } => "remove the label from the pod's node selector",
            ClassLacks { missing } if missing.iter().any(|label| label.ends_with("windows-build")) => "name the build, such as node.kubernetes.io/windows-build: \"10.0.20348\"",
            NotOnWindows { refused: true } => "remove it",
            HostNetwork => "remove it, or make the pod a HostProcess pod",
            HostProcessLevel { .. } => "label the namespace pod-security.kubernetes.io/enforce: privileged",
            HostProcessMixed { .. } => "give the other containers a pod of their own",
            AdministratorAsNonRoot => "runAsUserName: ContainerUser",
            MemoryVolume { .. } => "emptyDir: {}",
            WrongShell { system: System::Windows, .. } => "cmd /S /C or powershell -Command",
            WrongShell { system: System::Linux, .. } => "/bin/sh -c",
            CredentialWithoutName => "name the GMSACredentialSpec; the webhook fills the contents in",
            NoMemoryLimit { .. } => "resources.limits.memory: as much as the program takes at most",
            SmallType { .. } => "take a type with 4 GiB or more",
            TooFewAddresses { prefixes: false, .. } => "enable-windows-prefix-delegation: \"true\" gives each node up to 110 addresses; or more nodes",
            TooFewAddresses { prefixes: true, .. } => "allow more nodes",
            TooManyBackends { most: OLD_BACKENDS, .. } => "bring nodes of build 10.0.17763 to revision 2746, or split the workload behind several Services",
            TooManyBackends { .. } => "split the workload behind several Services",
            TooManyServices { .. } => "start kube-proxy with --feature-gates WinDSR=true --enable-dsr",
            SilentLogs { .. } => "put LogMonitor.exe and LogMonitorConfig.json into the image and start C:\\LogMonitor\\LogMonitor.exe C:\\ServiceMonitor.exe w3svc",
            ShortName { name, namespace } => return Some(format!("{name}.{namespace}.svc.cluster.local")),
            NoLinuxGroup => "add a Linux node group; two nodes are better than one",
            Family { refusal } => match refusal.meant() {
                Some(meant) => return Some(format!("amiFamily: {meant}")),
                None => "take one of these families",
            },
            CannotRun { .. } => "Windows needs an x86-64 type that the VPC resource controller knows, such as m5.xlarge",
            NotSimulated { mistake } => return mistake.hint.clone(),
            KubeletConfig => "remove it, or set the flags in a bootstrap command of your own image",
            FamilyAgainstPool { .. } => "name a class whose images are of the pool's system",
            AutoMode => "name an EC2NodeClass of a Karpenter that you run",
            NoWindowsTypes { .. } => "take other types, such as m5.large",
            NoPrefixTypes { .. } => "take Nitro types, such as m5.large",
            NotBoolean { .. } => "\"true\" or \"false\"",
            NotNumber { .. } | NegativeTarget { .. } => "a whole number from 0 on",
            TargetsContradict => "remove warm-prefix-target or the others",
            SmallVolume { least_gib, .. } => return Some(format!("{least_gib} GiB or more; images of containers need room too")),
            NoSuchZone { fault: ZoneFault::OtherRegion { cluster, .. } | ZoneFault::NoZone { cluster }, .. } => {
                let region = cluster.first().map_or("", String::as_str);
                return Some(format!("zones of {region} are {region}a, {region}b and so on"));
            }
            NoSuchZone { fault: ZoneFault::NoSubnet { zones, .. }, .. } => return Some(format!("take {}, or add a subnet", joined(zones.iter().cloned(), "or"))),
            UnlistedType { near, .. } if near.is_empty() => "aws ec2 describe-instance-types lists the types of a region",
            UnlistedType { near, .. } => return Some(format!("nearest to it: {}", near.join(", "))),
            UnknownField { near: Some(near), .. } => return Some(format!("the nearest field is {near}")),
            UnknownField { near: None, is_of_eksctl: true, .. } => "remove it: eksctl refuses the file",
            UnknownField { near: None, .. } => "remove it: kubectl apply refuses it, and a client that does not ask for validation has it dropped",
            Misfit { expected: Some("a text"), value, .. } if !value.contains(' ') => "the field takes a text: put the value into quotes",
            Misfit { expected: Some(expected), value, .. } => return Some(format!("the field takes {expected} and is {value}")),
            Misfit { expected: None, .. } => "give the field a value of its type",
            Refused { near: Some(near), .. } => return Some(format!("the nearest value is {near}")),
            Refused { field, is_missing: true, .. } => return Some(format!("add {field}")),
            Refused { .. } => return None,
            Nameless { lacks: "kind", .. } => "name the kind, such as kind: Deployment",
            Nameless { near: Some(near), .. } => return Some(format!("apiVersion: {near}")),
            Nameless { near: None, .. } => "kubectl api-resources lists the API versions of the kinds that a cluster has",
            LabelValue { key, .. } if key.ends_with("/os") => "take linux or windows: label values are case-sensitive",
            LabelValue { key, .. } if key.ends_with("/windows-build") => "the builds of Windows Server 2019, 2022 and 2025 are 10.0.17763, 10.0.20348 and 10.0.26100",
            LabelValue { key: "eks.amazonaws.com/capacityType", .. } => "take ON_DEMAND, SPOT or CAPACITY_BLOCK",
            LabelValue { key, .. } if key.ends_with("/capacity-type") => "take on-demand, spot or reserved",
            LabelValue { .. } => "take amd64 or arm64: label values are case-sensitive",
            OsName { .. } => "take linux or windows",
            NoSuchKind { near: Some(near), .. } => return Some(near.clone()),
            NoSuchKind { near: None, .. } => "kubectl api-resources lists the kinds and versions that a cluster has",
            BetaKarpenter { kind } if kind == "EC2NodeClass" => "apiVersion: karpenter.k8s.aws/v1",
            BetaKarpenter { .. } => "apiVersion: karpenter.sh/v1",
            BetaField { advice, .. } => advice,
            UnknownLimit { near: Some(near), .. } => return Some(format!("the nearest resource is {near}")),
            UnknownLimit { near: None, .. } => "cpu, memory and nodes are the usual ones",
            NoClassKind { meant: (group, kind), .. } => return Some(format!("nodeClassRef: {{group: {group}, kind: {kind}}}")),
            InvalidImage { .. } => "registry/path:tag, where the path has lower case letters, digits and . _ - / alone",
            OldKarpenter { provisioner: true } => "karpenter.sh/v1 NodePool: spec.requirements, taints and labels go below spec.template, ttlSecondsAfterEmpty becomes disruption.consolidateAfter, providerRef becomes nodeClassRef",
            OldKarpenter { provisioner: false } => "karpenter.k8s.aws/v1 EC2NodeClass: subnetSelector and securityGroupSelector become lists of terms, amiFamily becomes an alias in amiSelectorTerms, and a role is needed",
            _ => return None,
        };
        Some(advice.to_owned())
    }
}

/// Returns whether the kubelet of Kubernetes itself chooses the values of a label.
fn is_of_kubelet(key: &str) -> bool {
    key.ends_with("/os") || key.ends_with("/arch")
}

/// Describes changes in words: `set spec.nodeSelector[kubernetes.io/os] to windows`.
pub(super) fn edits(edits: &[Edit]) -> String {
    let words = edits.iter().map(|edit| {
        let path = shown(edit.path());
        match edit {
            Edit::Set(_, value) if value.as_str().is_some_and(|text| text.contains('\n')) => {
                format!("add the missing lines to {path}")
            }
            Edit::Set(_, value) => format!("{path}: {}", value_text(value)),
            Edit::Push(_, value) => format!("{path}: add {}", value_text(value)),
            Edit::Remove(_) => format!("remove {path}"),
            Edit::Rename(_, key) => format!("{path} becomes {key}"),
        }
    });
    joined(words, "and")
}

/// Returns the path after the pod's `spec`, or else the whole path: `nodeSelector kubernetes.io/os`.
fn shown(path: &Path) -> String {
    let after_spec = path
        .0
        .iter()
        .rposition(|step| matches!(step, Step::Key(key) if key == "spec"));
    let steps = match after_spec {
        Some(index) if index + 1 < path.0.len() => &path.0[index + 1..],
        _ => &path.0[..],
    };
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Index(index) => text += &format!("[{index}]"),
            Step::Key(key) if text.is_empty() => text += key,
            Step::Key(key) if key.contains(['.', '/']) => text += &format!(" {key}"),
            Step::Key(key) => text += &format!(".{key}"),
        }
    }
    text
}

fn value_text(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::String(text)
            if text.chars().all(|c| c.is_ascii_digit() || c == '.') || text == "true" =>
        {
            format!("{text:?}")
        }
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let shown: Vec<_> = super::yaml::ordered(fields)
                .into_iter()
                .map(|(key, value)| format!("{key}: {}", value_text(value)))
                .collect();
            format!("{{{}}}", shown.join(", "))
        }
        Value::Array(items) => {
            let shown: Vec<_> = items.iter().map(value_text).collect();
            format!("[{}]", shown.join(", "))
        }
        other => other.to_string(),
    }
}

fn no_tag(image: &Image, is_named: bool, is_missing: bool, builds: &str) -> String {
    let tag = if is_named {
        "has the tag latest"
    } else {
        "has no tag, which means latest"
    };
    if is_missing {
        format!("{image} {tag}, and Microsoft publishes no latest: the pull fails")
    } else if builds.is_empty() {
        // Nothing is known of the builds, so nothing is said of what they are.
        format!("{image} {tag}, which does not say a Windows build")
    } else {
        format!("{image} {tag}: it is for build {builds} today and may be for another one tomorrow")
    }
}

fn no_such_zone(zone: &str, fault: &ZoneFault, effect: LabelEffect) -> String {
    let effect = label_effect(effect);
    let all = |names: &[String]| joined(names.iter().cloned(), "and");
    match fault {
        ZoneFault::OtherRegion { own, cluster } => {
            let cluster = all(cluster);
            format!("{zone} is a zone of {own}, and the cluster is in {cluster}, {effect}")
        }
        ZoneFault::NoZone { cluster } => {
            format!("{zone:?} is no zone of {}, {effect}", all(cluster))
        }
        ZoneFault::NoSubnet {
            class: Some(class),
            zones,
        } => {
            let zones = all(zones);
            format!("{zone} has no subnet of class {class}, whose subnets are in {zones}, {effect}")
        }
        ZoneFault::NoSubnet { class: None, zones } => {
            let zones = all(zones);
            format!(
                "{zone} has no subnet in the ClusterConfig, which names {zones}, {effect} unless a subnet was added"
            )
        }
    }
}

fn label_effect(effect: LabelEffect) -> &'static str {
    match effect {
        LabelEffect::Pending => "so the pod stays Pending",
        LabelEffect::NotPreferred => "so the preference counts for nothing",
        LabelEffect::NotExcluded => "so nothing is excluded",
        LabelEffect::OtherValuesCount => "so the other values count alone",
        LabelEffect::OtherTermsCount => "so the other terms count alone",
        LabelEffect::NothingBought => "so the pool buys nothing",
        LabelEffect::NoSubnet => "so EC2 makes no subnet in it",
    }
}

fn last_key(path: &Path) -> &str {
    let keys = path.0.iter().rev().find_map(|step| match step {
        Step::Key(key) => Some(key.as_str()),
        Step::Index(_) => None,
    });
    keys.unwrap_or_default()
}

fn short_role(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or(arn)
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_the_tag_latest_is_said_to_change_its_build_only_where_one_is_known() {
        let image = |name: &str| Image {
            name: name.to_owned(),
            guess: true,
        };
        let base = image("mcr.microsoft.com/windows/servercore:latest");
        assert_eq!(
            no_tag(&base, true, true, ""),
            "image windows/servercore:latest has the tag latest, and Microsoft publishes no latest: the pull fails"
        );
        let shop = image("registry.example/shop");
        assert_eq!(
            no_tag(&shop, false, false, ""),
            "image registry.example/shop has no tag, which means latest, which does not say a Windows build"
        );
        assert_eq!(
            no_tag(&shop, false, false, "10.0.20348"),
            "image registry.example/shop has no tag, which means latest: it is for build 10.0.20348 today and may be for another one tomorrow"
        );
    }
}

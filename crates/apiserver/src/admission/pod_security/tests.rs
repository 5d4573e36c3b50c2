//! What each level says of a pod, in which version, and what the labels of a namespace mean.

use serde_json::json;

use super::{
    policy::{Level, Policy},
    *,
};

fn judged_by(level: Level, minor: Option<u32>, pod: &Value) -> String {
    described(&Policy { level, minor }.violations(&Pod {
        metadata: &pod["metadata"],
        spec: &pod["spec"],
    }))
}

fn judged(level: Level, spec: Value) -> String {
    judged_by(level, None, &json!({"metadata": {}, "spec": spec}))
}

#[test]
fn an_ordinary_pod_passes_baseline_but_not_restricted() {
    let spec = json!({"containers": [{"name": "c"}]});
    assert_eq!(judged(Level::Baseline, spec.clone()), "");
    assert_eq!(
        judged(Level::Restricted, spec),
        r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#
    );
}

#[test]
fn a_windows_pod_need_not_say_what_only_linux_knows() {
    let spec = json!({"os": {"name": "windows"}, "containers": [{"name": "c"}]});
    assert_eq!(
        judged(Level::Restricted, spec),
        r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#
    );
}

#[test]
fn host_process_containers_are_not_baseline() {
    let spec = json!({
        "hostNetwork": true,
        "securityContext": {"windowsOptions": {"hostProcess": true}},
        "containers": [{"name": "a"}, {"name": "b", "securityContext": {"windowsOptions": {"hostProcess": true}}}],
    });
    assert_eq!(
        judged(Level::Baseline, spec),
        r#"host namespaces (hostNetwork=true), hostProcess (pod and container "b" must not set securityContext.windowsOptions.hostProcess=true)"#
    );
}

#[test]
fn profiles_of_apparmor_are_told_together_wherever_they_stand() {
    let pod = json!({
        "metadata": {"annotations": {
            "container.apparmor.security.beta.kubernetes.io/d": "unconfined",
            "container.apparmor.security.beta.kubernetes.io/c": "complain",
            "container.apparmor.security.beta.kubernetes.io/b": "localhost/p",
        }},
        "spec": {
            "securityContext": {"appArmorProfile": {"type": "Unconfined"}},
            "containers": [{"name": "a", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}],
        },
    });
    let prefix = "container.apparmor.security.beta.kubernetes.io";
    assert_eq!(
        judged_by(Level::Baseline, None, &pod),
        format!(
            r#"forbidden AppArmor profiles (pod and container "a" and annotations must not set AppArmor profile type to "Unconfined", "{prefix}/c="complain"", "{prefix}/d="unconfined"")"#
        )
    );
}

#[test]
fn a_namespace_that_asks_for_an_older_version_is_judged_by_its_rules() {
    let pod = json!({
        "metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}},
        "spec": {
            "hostUsers": false,
            "os": {"name": "windows"},
            "securityContext": {
                "runAsUser": 0,
                "seLinuxOptions": {"type": "container_engine_t"},
                "sysctls": [{"name": "net.ipv4.ip_local_reserved_ports"}, {"name": "net.ipv4.tcp_fin_timeout"}, {"name": "net.ipv4.tcp_rmem"}],
            },
            "containers": [{"name": "c", "livenessProbe": {"httpGet": {"host": "h"}},
                            "securityContext": {"procMount": "Unmasked", "capabilities": {"add": ["SYS_TIME"]}}}],
        },
    });
    let reasons = |level, minor| -> Vec<&str> {
        let policy = Policy { level, minor };
        let found = policy.violations(&Pod {
            metadata: &pod["metadata"],
            spec: &pod["spec"],
        });
        found
            .into_iter()
            .map(|violation| violation.reason)
            .collect()
    };
    let (capabilities, unrestricted) = ("non-default capabilities", "unrestricted capabilities");
    let (escalation, host) = (
        "allowPrivilegeEscalation != false",
        "probe or lifecycle host",
    );
    let (root, user) = ("runAsNonRoot != true", "runAsUser=0");
    let (labels, seccomp, sysctls) = ("seLinuxOptions", "seccompProfile", "forbidden sysctls");
    for (level, minor, expected) in [
        (
            Level::Baseline,
            Some(0),
            vec![capabilities, "procMount", labels, seccomp, sysctls],
        ),
        (
            Level::Baseline,
            Some(31),
            vec![capabilities, "procMount", sysctls],
        ),
        (
            Level::Baseline,
            Some(34),
            vec![capabilities, host, "procMount"],
        ),
        (Level::Baseline, None, vec![capabilities, host]),
        (
            Level::Restricted,
            Some(7),
            vec![capabilities, "procMount", labels, seccomp, sysctls, root],
        ),
        (
            Level::Restricted,
            Some(21),
            vec![
                capabilities,
                "procMount",
                labels,
                sysctls,
                escalation,
                root,
                seccomp,
            ],
        ),
        (
            Level::Restricted,
            Some(24),
            vec![
                "procMount",
                labels,
                sysctls,
                escalation,
                unrestricted,
                root,
                user,
                seccomp,
            ],
        ),
        (
            Level::Restricted,
            Some(34),
            vec![host, "procMount", root, user],
        ),
        (Level::Restricted, Some(99), vec![host, "procMount"]),
    ] {
        assert_eq!(reasons(level, minor), expected, "{level:?} v1.{minor:?}");
    }
    let old = judged_by(Level::Baseline, Some(0), &pod);
    assert!(
        old.contains(r#"seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod="unconfined")"#),
        "{old}"
    );
    let old = judged_by(Level::Baseline, Some(29), &pod);
    assert!(
        old.ends_with("forbidden sysctls (net.ipv4.tcp_rmem)"),
        "{old}"
    );
}

#[test]
fn who_does_not_say_of_what_to_warn_is_warned_of_what_is_enforced() {
    let policies = |labels: Value| {
        let policies = Policies::of(&json!({"metadata": {"labels": labels}}));
        [policies.enforce.quoted(), policies.warn.quoted()]
    };
    let label = |mode: &str| format!("pod-security.kubernetes.io/{mode}");
    for (labels, enforce, warn) in [
        (json!({}), "privileged:latest", "privileged:latest"),
        (
            json!({label("enforce"): "baseline", label("enforce-version"): "v1.24"}),
            "baseline:v1.24",
            "baseline:v1.24",
        ),
        (
            json!({label("enforce"): "baseline", label("enforce-version"): "v1.24", label("warn-version"): "latest"}),
            "baseline:v1.24",
            "baseline:latest",
        ),
        (
            json!({label("enforce"): "restricted", label("warn"): "privileged"}),
            "restricted:latest",
            "privileged:latest",
        ),
        // What cannot be read is enforced strictly and warned of not at all.
        (
            json!({label("enforce"): "no", label("enforce-version"): "v1.01"}),
            "restricted:latest",
            "privileged:latest",
        ),
        (
            json!({label("enforce"): "baseline", label("warn"): "no"}),
            "baseline:latest",
            "privileged:latest",
        ),
    ] {
        let expected = [format!("{enforce:?}"), format!("{warn:?}")];
        assert_eq!(policies(labels.clone()), expected, "{labels}");
    }
}

#[test]
fn an_update_counts_when_it_changes_images_containers_or_old_annotations() {
    let old = json!({
        "metadata": {"annotations": {"a": "1"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "ephemeralContainers": [{"name": "d", "image": "i"}]},
    });
    for (pointer, value, counts) in [
        ("/metadata/annotations", json!({"a": "2"}), false),
        ("/spec/tolerations", json!([{"operator": "Exists"}]), false),
        ("/spec/activeDeadlineSeconds", json!(5), false),
        ("/spec/containers/0/image", json!("j"), true),
        ("/spec/ephemeralContainers/0/image", json!("j"), true),
        ("/spec/ephemeralContainers/0/name", json!("e"), true),
        (
            "/metadata/annotations",
            json!({"seccomp.security.alpha.kubernetes.io/pod": "x"}),
            true,
        ),
        (
            "/metadata/annotations",
            json!({"container.seccomp.security.alpha.kubernetes.io/c": "x"}),
            true,
        ),
    ] {
        let mut new = old.clone();
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
        new.pointer_mut(parent).expect("the parent is there")[field] = value;
        assert_eq!(is_significant(&new, &old), counts, "{pointer}");
    }
}

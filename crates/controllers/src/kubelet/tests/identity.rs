//! Tests the accounts of Windows containers: which ones the kubelet refuses to create and the runtime to start.

use super::*;

/// Returns the warnings about the pod's container, and its state in the last status.
fn said(mut scene: Scene, pod: &Value) -> Vec<String> {
    let wake = scene.observe(pod);
    scene.run(wake, 5);
    let mut said = Vec::new();
    let mut state = None;
    for line in &scene.lines {
        let (_, line) = line.split_once(' ').expect("a time");
        if line.starts_with("Warning") {
            said.push(line.to_owned());
        }
        let of_web = line.split(' ').find(|word| word.starts_with("web="));
        state = of_web.or(state);
    }
    said.extend(state.map(str::to_owned));
    said
}

fn windows() -> Scene {
    Scene::windows(Build::SERVER_2022)
}

/// Returns a pod with these security contexts of the pod and of its container.
fn secured(own: Value, container: Value) -> Value {
    let containers = json!([{ "name": "web", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022", "securityContext": container }]);
    pod(json!({ "containers": containers, "securityContext": own }))
}

fn runs_as(account: &str) -> Value {
    json!({ "windowsOptions": { "runAsUserName": account } })
}

#[test]
fn a_container_that_must_not_be_root_is_not_created_as_container_administrator() {
    let refused = |account: &str| {
        [
            format!(
                "Warning Failed: Error: container's runAsUserName ({account}) which will be regarded as root identity and will break \
                 non-root policy (pod: \"p_ns(uid-1)\", container: web)"
            ),
            "web=CreateContainerConfigError".to_owned(),
        ]
    };
    let non_root = || json!({ "runAsNonRoot": true });
    for account in ["ContainerAdministrator", "CONTAINERADMINISTRATOR"] {
        let mut both = runs_as(account);
        both["runAsNonRoot"] = json!(true);
        for pod in [
            secured(both.clone(), json!({})),
            secured(json!({}), both),
            secured(non_root(), runs_as(account)),
            secured(runs_as(account), non_root()),
        ] {
            assert_eq!(said(windows(), &pod), refused(account), "{pod}");
        }
    }
    let running = ["web=Running+"];
    for pod in [
        secured(non_root(), json!({})),
        secured(non_root(), runs_as("ContainerUser")),
        secured(json!({}), runs_as("ContainerAdministrator")),
        secured(
            non_root(),
            json!({ "runAsNonRoot": false, "windowsOptions": { "runAsUserName": "ContainerAdministrator" } }),
        ),
    ] {
        assert_eq!(said(windows(), &pod), running, "{pod}");
    }
}

#[test]
fn a_host_process_container_runs_as_a_service_account_or_as_a_local_group() {
    let with = |account: Option<&str>| {
        let mut options = json!({ "hostProcess": true });
        if let Some(account) = account {
            options["runAsUserName"] = json!(account);
        }
        let mut pod = secured(json!({ "windowsOptions": options }), json!({}));
        pod["spec"]["hostNetwork"] = json!(true);
        said(windows(), &pod)
    };
    for account in [
        r"NT AUTHORITY\SYSTEM",
        r"NT AUTHORITY\Local service",
        r"NT AUTHORITY\NETWORK SERVICE",
        "administrators",
    ] {
        let said = with(Some(account));
        assert!(
            said.len() == 1 && said[0].ends_with("web=Running+"),
            "{account}: {said:?}"
        );
    }
    let wrong = "failed to logon user: The user name or password is incorrect.";
    for (account, why) in [
        (Some("ContainerUser"), wrong),
        (Some("SYSTEM"), wrong),
        (Some(r"CONTOSO\webapp1"), wrong),
        (Some(r"NT AUTHORITY\Batch"), wrong),
        (None, "empty username or group name passed"),
    ] {
        let said = with(account);
        let end = format!("\": failed to create user process token: {why}: unknown");
        let start = "Warning Failed: Error: failed to start containerd task \"";
        assert!(
            said[0].starts_with(start) && said[0].ends_with(&end),
            "{account:?}: {said:?}"
        );
        assert!(
            said[1].ends_with("web=RunContainerError"),
            "{account:?}: {said:?}"
        );
    }
}

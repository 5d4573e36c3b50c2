//! Where webhooks are: by URL and by service, over connections that are kept.

use serde_json::json;

use super::{
    Api, MAPS, SERVICES, VALIDATING, api, by_service, configure, hook, map,
    program::{Program, allow},
};

#[tokio::test]
async fn a_service_of_type_external_name_leads_to_this_machine() {
    let program = Program::named(&["hook.default.svc"], allow).await;
    let api = api();
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    api.post(SERVICES, service).await.ok();
    let client = by_service(&program, program.address.port());
    configure(&api, VALIDATING, &[hook("v", client, &["configmaps"])]).await;
    api.post(MAPS, map("m")).await.ok();
    assert_eq!(program.asked().len(), 1);
}

#[tokio::test]
async fn connections_are_kept_for_the_next_write() {
    let program = Program::start(allow).await;
    let api = api();
    configure(&api, VALIDATING, &[program.hook("v", &["configmaps"])]).await;
    for index in 0..5 {
        api.post(MAPS, map(&format!("m{index}"))).await.ok();
    }
    assert_eq!((program.asked().len(), program.connections()), (5, 1));
}

async fn refusal(api: &Api) -> String {
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    let message = answer.body["message"].as_str().unwrap();
    let (_, why) = message
        .split_once("failed to call webhook: ")
        .expect(message);
    why.to_owned()
}

#[tokio::test]
async fn a_service_that_leads_nowhere_says_why_at_once() {
    let program = Program::start(allow).await;
    let api = api();
    configure(
        &api,
        VALIDATING,
        &[hook("v", by_service(&program, 8443), &["configmaps"])],
    )
    .await;
    let post = "Post \"https://hook.default.svc:8443/review?timeout=10s\": ";
    assert_eq!(
        refusal(&api).await,
        format!("{post}service \"hook\" not found")
    );
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443, "targetPort": 8443}]}});
    api.post(SERVICES, service).await.ok();
    assert_eq!(
        refusal(&api).await,
        format!("{post}no service port 8443 found for service \"hook\"")
    );
    api.merge(
        &format!("{SERVICES}/hook"),
        json!({"spec": {"ports": [{"port": 8443}]}}),
    )
    .await
    .ok();
    assert_eq!(
        refusal(&api).await,
        format!("{post}no endpoints available for service \"hook\"")
    );
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"name": "", "port": 9443}],
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "endpoints": [{"addresses": ["10.1.2.3"], "targetRef": {"kind": "Pod", "name": "p", "namespace": "default"}}],
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    api.post(slices, slice).await.ok();
    assert!(refusal(&api).await.starts_with(&format!(
        "{post}service \"default/hook\" is backed by simulated pods"
    )));
}

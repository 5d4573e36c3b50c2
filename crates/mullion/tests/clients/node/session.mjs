// @kubernetes/client-node: typed calls, patches, KubernetesObjectApi (apply from YAML), watch, informer, logs, exec.
// Run from the folder that has its node_modules, with the cluster's KUBECONFIG.

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { after, before, test } from 'node:test';
import * as k8s from '@kubernetes/client-node';

const PATIENCE_MS = 60_000;
const namespace = 'client-node';
const config = new k8s.KubeConfig();
config.loadFromFile(process.env.KUBECONFIG);
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

/** Asks until the answer is truthy. */
async function until(what, ask) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    if (Date.now() > deadline) throw new Error(`${what} did not happen within ${PATIENCE_MS / 1000} s`);
    await new Promise((wake) => setTimeout(wake, 50));
  }
}

/** Asserts that a call is refused with a code and a reason, and returns the Status. */
async function refused(code, reason, call) {
  const error = await call.then(
    () => assert.fail('it was not refused'),
    (error) => error,
  );
  assert.equal(error.code, code, error.message);
  const status = typeof error.body === 'string' ? JSON.parse(error.body) : error.body;
  assert.equal(status.reason, reason);
  return status;
}

const configMap = (name, data, labels) => ({ metadata: { name, labels }, data });
const create = (name, data, labels) => core.createNamespacedConfigMap({ namespace, body: configMap(name, data, labels) });

before(() => core.createNamespace({ body: { metadata: { name: namespace } } }));
after(() => core.deleteNamespace({ name: namespace }));

test('an object is created, read, replaced and deleted', { timeout: PATIENCE_MS }, async () => {
  const created = await create('crud', { a: '1' });
  assert.ok(created.metadata.creationTimestamp instanceof Date);
  created.data.a = '2';
  const replaced = await core.replaceNamespacedConfigMap({ name: 'crud', namespace, body: created });
  assert.notEqual(replaced.metadata.resourceVersion, created.metadata.resourceVersion);
  await refused(409, 'Conflict', core.replaceNamespacedConfigMap({ name: 'crud', namespace, body: created }));
  await refused(409, 'AlreadyExists', create('crud', {}));
  const invalid = await refused(422, 'Invalid', create('Bad_Name', {}));
  assert.equal(invalid.details.causes[0].field, 'metadata.name');
  assert.equal((await core.deleteNamespacedConfigMap({ name: 'crud', namespace })).status, 'Success');
  await refused(404, 'NotFound', core.readNamespacedConfigMap({ name: 'crud', namespace }));
});

test('every kind of patch', { timeout: PATIENCE_MS }, async () => {
  await create('patched', { a: '1' });
  const patch = (strategy, body, options = {}) =>
    core.patchNamespacedConfigMap(
      { name: 'patched', namespace, body, ...options },
      k8s.setHeaderOptions('Content-Type', strategy),
    );
  // A JSON patch is this client's default.
  const added = await core.patchNamespacedConfigMap({ name: 'patched', namespace, body: [{ op: 'add', path: '/data/b', value: '2' }] });
  assert.deepEqual(added.data, { a: '1', b: '2' });
  assert.deepEqual((await patch(k8s.PatchStrategy.MergePatch, { data: { a: null } })).data, { b: '2' });
  assert.deepEqual((await patch(k8s.PatchStrategy.StrategicMergePatch, { data: { c: '3' } })).data, { b: '2', c: '3' });
  const applied = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'patched' }, data: { d: '4' } };
  const owned = await patch(k8s.PatchStrategy.ServerSideApply, applied, { fieldManager: 'node' });
  assert.equal(owned.data.d, '4');
  assert.ok(owned.metadata.managedFields.some((entry) => entry.manager === 'node' && entry.operation === 'Apply'));
  await refused(422, 'Invalid', core.patchNamespacedConfigMap({ name: 'patched', namespace, body: [{ op: 'remove', path: '/data/z' }] }));
});

test('lists come in pages and by selectors', { timeout: PATIENCE_MS }, async () => {
  for (let index = 0; index < 5; index += 1) await create(`page-${index}`, {}, { group: 'page' });
  const names = [];
  let more;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, limit: 2, labelSelector: 'group=page', _continue: more });
    names.push(...page.items.map((item) => item.metadata.name));
    more = page.metadata._continue;
  } while (more);
  assert.deepEqual(names, ['page-0', 'page-1', 'page-2', 'page-3', 'page-4']);
  const one = await core.listNamespacedConfigMap({ namespace, fieldSelector: 'metadata.name=page-3' });
  assert.equal(one.items.length, 1);
});

const YAML = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: ${namespace}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers: [{name: main, image: 'nginx:1.27'}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ${namespace}}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: from-node}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: linux}
      requirements: [{key: kubernetes.io/os, operator: In, values: [linux]}]
`;

test('manifests are applied, whatever their kinds; pods run, log and are scaled', { timeout: 2 * PATIENCE_MS }, async () => {
  const specs = k8s.loadAllYaml(YAML);
  for (const spec of specs) {
    await objects.patch(spec, undefined, undefined, 'node', true, k8s.PatchStrategy.ServerSideApply);
    const read = await objects.read(spec);
    assert.equal(read.metadata.managedFields[0].operation, 'Apply');
    // Applying again changes nothing; to the others, controllers do.
    const again = await objects.patch(spec, undefined, undefined, 'node', true, k8s.PatchStrategy.ServerSideApply);
    if (spec.kind === 'Service') assert.equal(again.metadata.resourceVersion, read.metadata.resourceVersion);
  }
  const ready = async (count) => (await apps.readNamespacedDeployment({ name: 'web', namespace })).status.readyReplicas === count;
  await until('two pods are ready', () => ready(2));
  const scale = await apps.readNamespacedDeploymentScale({ name: 'web', namespace });
  scale.spec.replicas = 3;
  await apps.replaceNamespacedDeploymentScale({ name: 'web', namespace, body: scale });
  await until('three pods are ready', () => ready(3));
  const pods = await objects.list('v1', 'Pod', namespace, undefined, undefined, undefined, undefined, 'app=web');
  assert.equal(pods.items.length, 3);
  const pod = pods.items[0].metadata.name;
  await until('the container has said something', () => core.readNamespacedPodLog({ name: pod, namespace }));

  const followed = new PassThrough();
  const following = await new k8s.Log(config).log(namespace, pod, 'main', followed, { follow: true });
  const [line] = await Promise.race([
    new Promise((resolve) => followed.once('data', (chunk) => resolve([chunk.toString()]))),
    new Promise((_, reject) => setTimeout(() => reject(new Error('no line of the log came')), PATIENCE_MS).unref()),
  ]);
  following.abort();
  assert.ok(line.length > 0);
  for (const spec of specs) await objects.delete(spec);
});

test('a watch tells what changes', { timeout: PATIENCE_MS }, async () => {
  const seen = [];
  const { metadata } = await core.listNamespacedConfigMap({ namespace });
  let request;
  const ended = new Promise((resolve, reject) => {
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const options = { resourceVersion: metadata.resourceVersion, labelSelector: 'group=watch', allowWatchBookmarks: true };
    const heard = (kind, map) => {
      seen.push(`${kind} ${map.metadata.name}`);
      if (kind === 'DELETED') resolve();
    };
    new k8s.Watch(config).watch(path, options, heard, reject).then((started) => (request = started), reject);
  });
  await create('watched', {}, { group: 'watch' });
  await core.patchNamespacedConfigMap({ name: 'watched', namespace, body: [{ op: 'add', path: '/data', value: { a: '1' } }] });
  await core.deleteNamespacedConfigMap({ name: 'watched', namespace });
  await ended;
  request.abort();
  assert.deepEqual(seen, ['ADDED watched', 'MODIFIED watched', 'DELETED watched']);
});

test('an informer keeps a copy', { timeout: PATIENCE_MS }, async () => {
  await create('informed-before', {}, { group: 'informer' });
  const list = () => core.listNamespacedConfigMap({ namespace, labelSelector: 'group=informer' });
  const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, list, 'group=informer');
  const heard = [];
  for (const verb of ['add', 'update', 'delete']) informer.on(verb, (map) => heard.push(`${verb} ${map.metadata.name}`));
  informer.on('error', (error) => heard.push(`error ${error}`));
  await informer.start();
  await create('informed', {}, { group: 'informer' });
  await until('the informer hears', () => heard.includes('add informed'));
  await core.patchNamespacedConfigMap({ name: 'informed', namespace, body: [{ op: 'add', path: '/data', value: { a: '1' } }] });
  await until('the informer follows', () => heard.includes('update informed'));
  assert.equal(informer.get('informed', namespace).data.a, '1');
  await core.deleteNamespacedConfigMap({ name: 'informed', namespace });
  await until('the informer forgets', () => heard.includes('delete informed'));
  assert.deepEqual(informer.list(namespace).map((map) => map.metadata.name), ['informed-before']);
  assert.ok(!heard.some((line) => line.startsWith('error')), heard.join(', '));
  // It calls its own stop an error.
  await informer.stop();
});

test('who may do what, and who asks', { timeout: PATIENCE_MS }, async () => {
  const authorization = config.makeApiClient(k8s.AuthorizationV1Api);
  const asked = { spec: { resourceAttributes: { verb: 'delete', resource: 'nodes' } } };
  assert.equal((await authorization.createSelfSubjectAccessReview({ body: asked })).status.allowed, true);
  const robot = new k8s.KubeConfig();
  await core.createNamespacedServiceAccount({ namespace, body: { metadata: { name: 'robot' } } });
  const body = { spec: { audiences: [], expirationSeconds: 600 } };
  const { status } = await core.createNamespacedServiceAccountToken({ name: 'robot', namespace, body });
  robot.loadFromOptions({
    clusters: config.clusters,
    users: [{ name: 'robot', token: status.token }],
    contexts: [{ name: 'robot', cluster: config.clusters[0].name, user: 'robot' }],
    currentContext: 'robot',
  });
  const refusal = await refused(403, 'Forbidden', robot.makeApiClient(k8s.CoreV1Api).listNode());
  assert.match(refusal.message, /User "system:serviceaccount:client-node:robot" cannot list resource "nodes"/);
});

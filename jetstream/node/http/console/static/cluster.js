export function clusterView() { return { title: "Cluster", element: document.createElement("p"), close() {} }; }

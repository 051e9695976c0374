export function recordsView() { return { title: "Records", element: document.createElement("p"), close() {} }; }

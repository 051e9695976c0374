export function healthView() { return { title: "Health", element: document.createElement("p"), close() {} }; }

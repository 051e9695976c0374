export function groupsView() { return { title: "Groups", element: document.createElement("p"), close() {} }; }
export const groupView = groupsView;

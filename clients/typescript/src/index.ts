export * from "./memory.js";
export * from "./methods.js";
